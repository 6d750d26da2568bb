"""Writers of the fields of 2.1 and 2.2 files.

    write(array)  ->  Queue  ->  shred, choose, encode for each leaf  ->  EncodedPage

Arrays of a top-level field are queued until they exceed the cache size times the number of leaves; then each leaf of
the field becomes a page of its own column. A single array larger than the maximum page size is split into equal parts,
which are encoded in parallel. The payloads of blobs are written immediately; only their positions and sizes are queued.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from lancetable.errors import SchemaMismatchError, UnsupportedFeatureError
from lancetable.file import thread_pool
from lancetable.file.column_interfaces import BlobSink, ColumnWriter, EncodedPage, PageOptions, contains_null
from lancetable.file.custom_encodings import encode_custom, requested_encoding
from lancetable.file.encodings_v2_0.blob import describe_blobs
from lancetable.file.encodings_v2_0.column_writers import COLUMN_VALUES, Queue, equal_parts, null_refused
from lancetable.file.encodings_v2_1.base import pack_page
from lancetable.file.encodings_v2_1.choose import EncodedRows, encode_pages
from lancetable.file.encodings_v2_1.choose_dictionary import pages_repeat_items
from lancetable.file.encodings_v2_1.choose_layout import LeafSpec
from lancetable.file.encodings_v2_1.encoding_options import EncodingOptions
from lancetable.file.encodings_v2_1.layouts.blob import encode_blobs
from lancetable.file.encodings_v2_1.shred import StepKind, leaves_of, shred
from lancetable.file.encodings_v2_1.supported_types import check_field
from lancetable.format.schema import Field, Schema
from lancetable.format.version import FileVersion
from lancetable.proto import encodings_v2_1_pb2 as pb

_PARALLEL_BYTES: Final = 1 << 20
_ONE_COLUMN: Final = (COLUMN_VALUES,)


def column_encodings(version: FileVersion, schema: Schema) -> list[Sequence[bytes]]:
    """Return the encodings of the columns of each top-level field; see `Writers`."""
    encodings: list[Sequence[bytes]] = []
    checked: set[str] = set()  # types without children, of which most schemas have few
    for field in schema.fields:
        is_plain = not field.children and not field.metadata
        if is_plain and field.logical_type in checked:
            encodings.append(_ONE_COLUMN)
            continue
        leaves = list(leaves_of(field))
        check_field(field, leaves, version)
        encodings.append(_ONE_COLUMN * len(leaves))
        if is_plain:
            checked.add(field.logical_type)
    return encodings


def open_writer(version: FileVersion, field: Field, column: int, options: PageOptions, blobs: BlobSink) -> ColumnWriter:
    """Return a writer of a top-level field, whose first column has the number `column`."""
    specs = [LeafSpec(leaf, EncodingOptions.of(leaf.field.metadata), version) for leaf in leaves_of(field)]
    return FieldWriter(column, field, specs, options, blobs)


class _Job(NamedTuple):
    """Rows of a leaf to encode as a page; `first_row` is the first row number in the file."""

    column: int
    leaf: LeafSpec
    array: pa.Array
    first_row: int


@dataclass(slots=True, eq=False)
class FieldWriter:
    """Writer of a top-level field with all its leaves."""

    _column: int  # of the first leaf
    _field: Field
    _leaves: Sequence[LeafSpec]
    _options: PageOptions
    _blobs: BlobSink
    _queue: Queue = dataclasses.field(default_factory=Queue)
    _num_rows: int = 0
    concurrent: bool = dataclasses.field(init=False)
    _is_strict: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.concurrent = not any(leaf.leaf.field.is_blob for leaf in self._leaves)
        self._is_strict = _has_strict(self._field)

    @property
    def queued_bytes(self) -> int:
        return self._queue.size_bytes

    def write(self, array: pa.Array) -> Iterable[EncodedPage]:
        if self._is_strict:
            _refuse_nulls(self._field, array, self._field.name)
        if len(array) == 0:
            return ()
        if self._field.is_blob:
            described = describe_blobs(array, self._blobs)
            array = pa.StructArray.from_arrays(described.flatten(), list(described.type.names), mask=array.is_null())
        self._queue.add(array)
        is_full = self._queue.size_bytes > self._options.cache_bytes * max(len(self._leaves), 1)
        return self._flush() if is_full else ()

    def finish(self) -> Iterable[EncodedPage]:
        return self._flush(last=True)

    def _flush(self, last: bool = False) -> Iterable[EncodedPage]:
        size = self._queue.size_bytes
        arrays = self._queue.take()
        if not arrays:
            return ()
        if last and not self._num_rows and self._field.children:
            # The file has no other pages, so structs without nulls here have none anywhere.
            self._leaves = [leaf if leaf.large_chunks else _without_null_structs(leaf, arrays) for leaf in self._leaves]
        parts: Iterable[pa.Array]
        if len(arrays) == 1:
            limit = self._options.max_page_bytes * max(len(self._leaves), 1)
            parts = equal_parts(arrays[0], size, limit if not self._repeats(arrays[0], size, limit) else size)
        else:
            try:
                parts = [pa.concat_arrays(arrays)]
            except pa.ArrowException:  # too many distinct dictionary items, or more bytes than 32-bit offsets address
                parts = arrays
        jobs: list[_Job] = []
        for part in parts:
            jobs += [
                _Job(self._column + number, leaf, part, self._num_rows) for number, leaf in enumerate(self._leaves)
            ]
            self._num_rows += len(part)
        if len(jobs) == 1:
            return self._encode_job(jobs[0])
        parallel = len(jobs) > 1 and size >= _PARALLEL_BYTES and self.concurrent and thread_pool.can_share()
        # The pool holds at most one more page than it has threads.
        return itertools.chain.from_iterable((thread_pool.in_order if parallel else map)(self._encode_job, jobs))

    def _repeats(self, array: pa.Array, size: int, limit: int) -> bool:
        """Return True if pages of at most `limit` bytes would repeat a dictionary of considerable size."""
        if size <= limit:
            return False
        return any(
            pages_repeat_items(leaf, array, -(-size // limit)) for leaf in self._leaves if not leaf.leaf.field.is_blob
        )

    def _encode_job(self, job: _Job) -> list[EncodedPage]:
        leaf = job.leaf.leaf
        custom = requested_encoding(leaf.field) if leaf.field.metadata else None
        if custom is not None:
            message, buffers = encode_custom(custom, job.array)
            return [EncodedPage(job.column, len(job.array), buffers, message, job.first_row)]
        try:
            pages = self._encode_blobs(job) if leaf.field.is_blob else encode_pages(job.leaf, job.array)
        except (SchemaMismatchError, UnsupportedFeatureError) as error:
            raise type(error)(f"column {leaf.path!r}: {error}", column=leaf.path) from error
        encoded = []
        row = job.first_row
        for page in pages:
            encoded.append(EncodedPage(job.column, page.length, page.page.buffers, pack_page(page.page.layout), row))
            row += page.num_rows
        return encoded

    def _encode_blobs(self, job: _Job) -> list[EncodedRows]:
        shredded = shred(job.array, job.leaf.leaf.steps)
        described = shredded.values if self._field.is_blob else describe_blobs(shredded.values, self._blobs)
        positions = np.array(described.field(0))
        sizes = np.asarray(described.field(1))
        layers, definition = shredded.layers, shredded.definition
        if definition is not None:
            hidden = definition > 0
            levels = definition[hidden].astype(np.uint64)
            if layers[0] == pb.REPDEF_ALL_VALID_ITEM:
                # pylance detects nulls of enclosing structs only if the blob layer, one level below, is nullable.
                layers = (pb.REPDEF_NULLABLE_ITEM, *layers[1:])
                levels += np.uint64(1)
            positions[hidden] = levels << np.uint64(16)
            sizes = np.where(hidden, np.uint64(0), sizes)
        page = encode_blobs(positions, sizes, layers, job.leaf.large_chunks)
        return [EncodedRows(page, len(job.array), len(job.array))]


def _has_strict(field: Field) -> bool:
    """Return True if the field or one of its descendants is not nullable."""
    return not field.nullable or any(_has_strict(child) for child in field.children)


def _without_null_structs(spec: LeafSpec, arrays: Sequence[pa.Array]) -> LeafSpec:
    """Declare the structs above the lists of a column non-nullable if they have no nulls in `arrays`.

    `arrays` must be all rows of the file. Old releases of pylance misread pages in which these structs are declared
    nullable but have no nulls.
    """
    if not spec.leaf.steps:
        return spec
    steps = list(spec.leaf.steps)
    for number, step in enumerate(steps):
        if step.kind is not StepKind.STRUCT:
            break
        if any(array.null_count for array in arrays):
            return spec
        steps[number] = step._replace(nullable=False)
        arrays = [array.field(step.number) for array in arrays]
    return spec._replace(leaf=replace(spec.leaf, steps=tuple(steps)))


def _refuse_nulls(field: Field, array: pa.Array, path: str) -> None:
    """Raise SchemaMismatchError for a null in a field that is not nullable; values below a null are not checked."""
    if not _has_strict(field):
        return
    if not field.nullable and contains_null(array):
        raise null_refused(path)
    for number, child in enumerate(field.children):
        name = f"{path}.{child.name}"
        if field.is_struct:
            values = array.field(number)
            _refuse_nulls(child, values.filter(array.is_valid()) if array.null_count else values, name)
        elif field.is_list:
            _refuse_nulls(child, array.flatten(), name)
        elif field.logical_type == "map" and not array.null_count:
            first, last = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
            _refuse_nulls(child, array.values.slice(first, last - first), name)
