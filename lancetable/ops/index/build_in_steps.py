"""Builds of PQ indexes in steps, with files between them.

    write_codes        rows of fragments     ─► a file with row, partition and code of each vector
    sort_codes         such files            ─► one file, sorted by partition
    load_codes         such files            ─► a segment, which is not committed

A file also contains the covered fragments and the version of the table, so that the segment covers the fragments whose
rows it has, and no others.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError, InvalidInputError
from lancetable.file import LanceFileReader, LanceFileWriter
from lancetable.index.vector.build_settings import BuildSettings
from lancetable.index.vector.partition_buffers import PartitionBuffers
from lancetable.index.vector.segment_writer import EncodedRows, VectorEncoder, write_segment
from lancetable.index.vector.vector_kind import train_on
from lancetable.ops.index.column_values import ColumnValues
from lancetable.ops.index.segment_builder import IndexTarget, stores_row_ids, write_files

if TYPE_CHECKING:
    from lancetable.format.index import IndexMetadata
    from lancetable.index.index_files import SegmentWriter
    from lancetable.index.vector.training import TrainedIndex
    from lancetable.table.version import TableVersion

# Columns of pylance for these files.
_ROW, _PARTITION, _CODE = "_rowid", "__ivf_part_id", "__pq_code"
_COVERAGE: Final = "lancetable:coverage"
_READ_ROWS: Final = 1 << 16


class Coverage(NamedTuple):
    """Fragments whose rows a file contains, and the oldest version from which they were read."""

    fragment_ids: tuple[int, ...]
    version: int

    @property
    def metadata(self) -> dict[str, str]:
        """The entry of the metadata of a file."""
        return {_COVERAGE: json.dumps({"fragments": self.fragment_ids, "version": self.version})}

    @classmethod
    def parse(cls, metadata: Mapping[bytes, bytes] | None, path: str) -> Coverage:
        """Return the coverage in the metadata of a file. Raises CorruptFileError, with `path`, if it is invalid."""
        try:
            entry = json.loads((metadata or {})[_COVERAGE.encode()])
            numbers = [*entry["fragments"], entry["version"]]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = "not a file of transform_vectors or shuffle_transformed_vectors of this library"
            raise CorruptFileError(what, path=path) from error
        if not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
            raise CorruptFileError("invalid fragments of transformed vectors", found=numbers, path=path)
        return cls(tuple(entry["fragments"]), entry["version"])


def trained_index(version: TableVersion, target: IndexTarget, fragment_ids: Sequence[int]) -> TrainedIndex:
    """Return centroids and codebook: those of the options of `target`, or trained ones.

    Raises InvalidInputError if the options do not fit the column, or if there are too few vectors.
    """
    trained = train_on(target.field, target.options, ColumnValues(version, target.field, fragment_ids, row_ids=False))
    if trained is None:
        raise InvalidInputError(f"there are too few vectors to train the index of {target.field.name!r}")
    return trained


def write_codes(version: TableVersion, target: IndexTarget, fragment_ids: Sequence[int], path: str) -> None:
    """Write the partitions and codes of the rows of fragments to a file, with the storage options of the table."""
    trained = trained_index(version, target, fragment_ids)
    row_ids = stores_row_ids(version, target.kind)
    values = ColumnValues(version, target.field, fragment_ids, row_ids=row_ids)
    encoder = VectorEncoder(trained, BuildSettings.of_options(target.options).metric)
    schema = _schema(trained.quantizer.code_type, Coverage(tuple(fragment_ids), version.version))
    with LanceFileWriter(path, schema, storage_options=version.storage_options) as writer:
        for encoded in encoder.encode_all(values):
            writer.write_batch(_batch(encoded, schema))


def sort_codes(version: TableVersion, paths: Sequence[str], num_partitions: int, path: str) -> None:
    """Write the rows of files to one file, sorted by partition. See `write_codes`.

    Raises InvalidInputError if two files cover the same fragment, and CorruptFileError if a file is invalid.
    """
    options = version.storage_options
    files = [_CodeFile(each, options) for each in paths]
    schema = _schema(_code_type(files), _united(files))
    with PartitionBuffers(num_partitions) as buffers, LanceFileWriter(path, schema, storage_options=options) as writer:
        _gather(files, buffers)
        for number in np.flatnonzero(buffers.lengths).tolist():
            rows, codes = buffers.partition(number)
            writer.write_batch(_batch(EncodedRows(np.full(len(rows), number, np.uint32), rows, codes), schema))


def load_codes(version: TableVersion, target: IndexTarget, paths: Sequence[str]) -> IndexMetadata:
    """Write a segment with the rows of files, without committing it. The centroids and the codebook are options.

    Raises InvalidInputError if two files cover the same fragment, and CorruptFileError if a file is invalid.
    """
    files = [_CodeFile(path, version.storage_options) for path in paths]
    coverage, trained = _united(files), trained_index(version, target, [])
    settings = BuildSettings.of_options(target.options)
    if _code_type(files) != trained.quantizer.code_type:
        what = f"the files contain codes of the type {_code_type(files)}, but those of the PQ model have"
        raise InvalidInputError(f"{what} {trained.quantizer.code_type}")

    def write(writer: SegmentWriter) -> bytes:
        with PartitionBuffers(len(trained.centroids)) as buffers:
            _gather(files, buffers)
            write_segment(writer, trained, buffers, settings)
        details: bytes = settings.to_details().SerializeToString()
        return details

    return write_files(version, target, coverage.fragment_ids, coverage.version, write, uuid.uuid4())


class _CodeFile:
    """An opened file with the coverage and the codes of rows."""

    def __init__(self, path: str, storage_options: Mapping[str, str] | None) -> None:
        self.path, self._reader = path, LanceFileReader(path, storage_options=storage_options)
        schema = self._reader.metadata().schema
        self.coverage = Coverage.parse(schema.metadata, path)
        names = (_ROW, _PARTITION, _CODE)
        types = [schema.field(name).type if name in schema.names else pa.null() for name in names]
        self.code_type: pa.DataType = types[2]
        is_code = pa.types.is_fixed_size_list(self.code_type) and self.code_type.value_type == pa.uint8()
        if types[:2] != [pa.uint64(), pa.uint32()] or not is_code:
            raise CorruptFileError("invalid columns of transformed vectors", found=types, path=path)

    def rows(self, num_partitions: int) -> Iterator[EncodedRows]:
        """Yield the rows. Raises CorruptFileError if there are others than those of the partitions."""
        for batch in self._reader.read_all(batch_size=_READ_ROWS).to_batches():
            rows, partitions, codes = (batch.column(name) for name in (_ROW, _PARTITION, _CODE))
            values = codes.flatten()
            if rows.null_count or partitions.null_count or codes.null_count or values.null_count:
                raise CorruptFileError("null in transformed vectors", path=self.path)
            numbers = partitions.to_numpy()
            if len(numbers) and int(numbers.max()) >= num_partitions:
                what = "a partition of transformed vectors that the IVF model does not have"
                raise CorruptFileError(what, f"below {num_partitions}", int(numbers.max()), path=self.path)
            yield EncodedRows(numbers, rows.to_numpy(), values.to_numpy().reshape(len(codes), -1))


def _gather(files: Sequence[_CodeFile], buffers: PartitionBuffers) -> None:
    for file in files:
        for encoded in file.rows(len(buffers.lengths)):
            buffers.add(*encoded)
    buffers.finish()


def _united(files: Sequence[_CodeFile]) -> Coverage:
    """Return the coverage of several files. Raises InvalidInputError if it overlaps, or if there are no files."""
    if not files:
        raise InvalidInputError("filenames must name at least one file")
    seen: set[int] = set()
    for file in files:
        repeated = sorted(seen.intersection(file.coverage.fragment_ids))
        if repeated:
            raise InvalidInputError(f"{file.path} contains rows of fragment {repeated[0]}, as another file does")
        seen.update(file.coverage.fragment_ids)
    return Coverage(tuple(sorted(seen)), min(file.coverage.version for file in files))


def _code_type(files: Sequence[_CodeFile]) -> pa.DataType:
    """Return the type of the codes. Raises InvalidInputError if the files have different ones."""
    types = {file.code_type for file in files}
    if len(types) > 1:
        raise InvalidInputError(f"the files contain codes of different types: {sorted(map(str, types))}")
    return next(iter(types), pa.list_(pa.uint8(), 1))


def _schema(code_type: pa.DataType, coverage: Coverage) -> pa.Schema:
    fields = [pa.field(_ROW, pa.uint64()), pa.field(_PARTITION, pa.uint32()), pa.field(_CODE, code_type)]
    return pa.schema(fields, coverage.metadata)


def _batch(encoded: EncodedRows, schema: pa.Schema) -> pa.RecordBatch:
    codes = np.ascontiguousarray(encoded.codes).reshape(-1)
    values = pa.FixedSizeListArray.from_arrays(pa.array(codes), type=schema.field(_CODE).type)
    arrays = [pa.array(encoded.rows), pa.array(encoded.partitions), values]
    return pa.record_batch(arrays, schema=schema)
