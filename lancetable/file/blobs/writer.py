"""Blobs of the second form on their way out: bytes go where their size says, the column keeps descriptions.

    size of a blob            goes to                                            kind
    above the dedicated size  a file of its own                                  2
    above the inline size     the open pack file of its column, or a new one     1
    else                      the data file, between the pages                   0

Blobs may lie inside of structs and lists. A prepared column (file/blobs/prepared.py) says itself where its blobs lie;
what it may say here is inline, null, and objects of a table that keeps them, below its root or a base path.

One of these stands beside the writer of each data file whose schema has such blobs. Blob files are closed before their
data file is, so whoever sees the data file sees them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import InvalidInputError, UnsupportedFeatureError
from lancetable.file.blobs.descriptor import (
    DESCRIPTION_V2,
    PREPARED,
    BlobKind,
    blob_file_path,
    replace_blobs,
    stored_schema,
)
from lancetable.file.blobs.prepared import describe_prepared
from lancetable.file.encodings_v2_0.blob import describe_blobs
from lancetable.format.flags import MANAGED_BLOBS_KEY

if TYPE_CHECKING:
    from lancetable.file.column import BlobSink
    from lancetable.format.schema import Field, Schema
    from lancetable.store.base import ObjectStore, ObjectWriter

__all__ = ["BlobColumns", "check_places"]

_PREFIX: Final = "lance-encoding:blob-"
_INLINE_BYTES: Final = 64 * 1024
_DEDICATED_BYTES: Final = 4 * 1024 * 1024
_PACK_BYTES: Final = 1024 * 1024 * 1024
_MAX_ID: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class _Thresholds:
    """Sizes in bytes up to which a blob lies in the data file, shares a file, and up to which such a file grows."""

    inline: int
    dedicated: int
    pack: int

    @classmethod
    def of(cls, metadata: Mapping[str, bytes], pack_bytes: int | None) -> _Thresholds:
        def number(key: str, otherwise: int) -> int:
            text = metadata.get(f"{_PREFIX}{key}-threshold", b"").decode("ascii", "replace")
            return int(text) if text.isdecimal() and len(text) < 19 else otherwise

        return cls(
            number("inline-size", _INLINE_BYTES),
            number("dedicated-size", _DEDICATED_BYTES),
            number("pack-file-size", _PACK_BYTES if pack_bytes is None else pack_bytes),
        )


@dataclass(slots=True)
class _Pack:
    """The file that a column is filling."""

    blob_id: int
    writer: ObjectWriter


class BlobColumns:
    """Writes the blobs of one data file.

    `path` is where the data file will be, `sink` puts bytes into it, `pack_bytes` is the largest shared file where the
    field does not say, `base_ids` are the base paths of the table.
    """

    def __init__(
        self,
        store: ObjectStore,
        path: str,
        schema: Schema,
        sink: BlobSink,
        pack_bytes: int | None = None,
        *,
        base_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._base_ids = base_ids
        self._store, self._path, self._schema, self._sink = store, path, schema, sink
        self._types = [field.data_type for field in stored_schema(schema).fields]
        self._pack_bytes = pack_bytes
        self._packs: dict[int, _Pack] = {}  # by field id
        self._next_id = 1
        self._written: list[str] = []

    def describe(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch as the data file stores it: blobs written, their descriptions in place of them."""
        arrays = [
            replace_blobs(array, field, data_type, self._write)
            for field, array, data_type in zip(self._schema.fields, batch.columns, self._types)
        ]
        return pa.RecordBatch.from_arrays(arrays, self._schema.names)

    def finish(self) -> None:
        """Close the open files."""
        for pack in self._packs.values():
            pack.writer.close()
        self._packs.clear()

    def abandon(self) -> None:
        """Leave nothing behind."""
        for pack in self._packs.values():
            pack.writer.abort()
        self._packs.clear()
        self._store.delete(self._written)

    def _write(self, field: Field, array: pa.StructArray) -> pa.StructArray:
        if array.type.equals(PREPARED):
            self._check_prepared(field, array)
            return describe_prepared(array, self._sink)
        data = array.field("data")
        valid = np.asarray(array.is_valid().to_numpy(zero_copy_only=False))
        _check_values(field, array, data, valid)
        sizes = np.where(valid, pc.binary_length(data).fill_null(0).to_numpy(zero_copy_only=False), 0).astype(np.int64)
        limits = _Thresholds.of(field.metadata, self._pack_bytes)
        kind = np.zeros(len(array), np.uint8)
        position = np.zeros(len(array), np.int64)
        blob_id = np.zeros(len(array), np.uint32)
        filled = sizes > 0
        dedicated = filled & (sizes > limits.dedicated)
        packed = filled & ~dedicated & (sizes > limits.inline)
        inline = filled & ~dedicated & ~packed
        if inline.any():
            places = describe_blobs(data if inline.all() else data.filter(pa.array(inline)), self._sink)
            position[inline] = np.asarray(places.field(0)).astype(np.int64)
        for row in np.flatnonzero(dedicated | packed).tolist():
            payload = data[row].as_buffer()
            if dedicated[row]:
                kind[row] = BlobKind.DEDICATED
                blob_id[row] = self._write_dedicated(payload)
            else:
                kind[row] = BlobKind.PACKED
                blob_id[row], position[row] = self._write_packed(field, payload, limits)
        return _descriptions(kind, position, sizes, blob_id, valid)

    def _check_prepared(self, field: Field, array: pa.StructArray) -> None:
        """Prepared blobs may lie in this data file or, if the table says so, be objects of the table."""
        kinds = set(array.field("kind").filter(array.is_valid()).unique().to_pylist())
        if kinds & {BlobKind.PACKED, BlobKind.DEDICATED}:
            raise InvalidInputError(
                f"column {field.name!r}: blob files lie beside the data file that describes them, and this one just "
                "got its name; write the data file with LanceFileWriter and commit it",
                column=field.name,
            )
        managed = kinds & {BlobKind.MANAGED, BlobKind.MANAGED_BASE}
        if managed and self._schema.metadata.get(MANAGED_BLOBS_KEY) != b"true":
            raise InvalidInputError(
                f"column {field.name!r}: managed blobs need a table with the schema metadata {MANAGED_BLOBS_KEY}=true",
                column=field.name,
            )
        if BlobKind.MANAGED_BASE in kinds:
            below = pc.equal(array.field("kind"), int(BlobKind.MANAGED_BASE))
            named = set(array.field("blob_id").filter(pc.and_(below, array.is_valid())).unique().to_pylist())
            unknown = sorted(named - self._base_ids - {None})
            if unknown:
                known = ", ".join(map(str, sorted(self._base_ids))) or "none"
                raise InvalidInputError(
                    f"column {field.name!r}: a managed blob names the base path {unknown[0]}; the table has {known}",
                    column=field.name,
                )

    def _write_dedicated(self, data: pa.Buffer) -> int:
        blob_id, writer = self._open()
        with writer:
            writer.write(data)
        return blob_id

    def _write_packed(self, field: Field, data: pa.Buffer, limits: _Thresholds) -> tuple[int, int]:
        pack = self._packs.get(field.id)
        if pack is not None and pack.writer.tell() + data.size > limits.pack:
            pack.writer.close()
            pack = None
        if pack is None:
            pack = self._packs[field.id] = _Pack(*self._open())
        at = pack.writer.tell()
        pack.writer.write(data)
        return pack.blob_id, at

    def _open(self) -> tuple[int, ObjectWriter]:
        blob_id = self._next_id
        if blob_id > _MAX_ID:
            raise InvalidInputError(f"{self._path}: more than {_MAX_ID} blob files for one data file")
        self._next_id += 1
        path = blob_file_path(self._path, blob_id)
        self._written.append(path)
        return blob_id, self._store.open_writer(path)


def check_places(schema: Schema) -> None:
    """Raises UnsupportedFeatureError for blobs that lie neither at the top nor inside of structs and lists."""
    for field in schema.fields:
        _check_place(field, ())


def _check_place(field: Field, above: tuple[Field, ...]) -> None:
    if field.is_blob_v2:
        for each in above:
            if not each.is_struct and not each.is_list:
                raise UnsupportedFeatureError(
                    f"column {field.name!r}: blobs inside of {each.logical_type!r} cannot be written",
                    feature="blobs in fixed-size lists and maps",
                )
        return
    for child in field.children:
        _check_place(child, (*above, field))


def _check_values(field: Field, array: pa.StructArray, data: pa.Array, valid: npt.NDArray[np.bool_]) -> None:
    uri = array.field("uri")
    if uri.null_count < len(uri) and (uri.is_valid().to_numpy(zero_copy_only=False) & valid).any():
        raise UnsupportedFeatureError(
            f"column {field.name!r}: blobs that lie elsewhere (a uri) cannot be written; give their bytes",
            feature="external blobs",
            column=field.name,
        )
    if data.null_count and (data.is_null().to_numpy(zero_copy_only=False) & valid).any():
        raise InvalidInputError(f"column {field.name!r}: a blob has neither data nor uri; null is a null struct")


def _descriptions(kind: Any, position: Any, size: Any, blob_id: Any, valid: npt.NDArray[np.bool_]) -> pa.StructArray:
    columns = [
        pa.array(kind),
        pa.array(position.astype(np.uint64)),
        pa.array(size.astype(np.uint64)),
        pa.array(blob_id),
        pa.array(np.full(len(kind), ""), pa.string()),
    ]
    mask = None if valid.all() else pa.array(~valid)
    return pa.StructArray.from_arrays(columns, fields=list(DESCRIPTION_V2), mask=mask)
