"""Writer of version 2 blobs. It chooses the storage location by size and stores descriptions in the column.

    size of a blob                 location                                  kind
    above the dedicated threshold  a file of its own                         2
    above the inline threshold     a file shared with blobs of its column    1
    otherwise                      the data file, between the pages          0

Blobs may be inside structs and lists. A prepared column (file/blobs/prepared.py) already contains the locations of its
blobs. The writer accepts prepared inline blobs, nulls, and managed objects below the root of the table or a base path.

Each data file whose schema has such blobs has its own writer. Blob files are closed before their data file, so readers
that see the data file see its blobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import InvalidInputError, UnsupportedFeatureError
from lancetable.file.blobs.descriptions import (
    PREPARED,
    BlobKind,
    blob_file_path,
    build_descriptions,
    replace_blobs,
    stored_schema,
)
from lancetable.file.blobs.prepared import describe_prepared
from lancetable.file.encodings_v2_0.blob import describe_blobs
from lancetable.format.feature_flags import MANAGED_BLOBS_KEY

if TYPE_CHECKING:
    from lancetable.file.column_interfaces import BlobSink
    from lancetable.format.schema import Field, Schema
    from lancetable.store.base import ObjectStore, ObjectWriter

_INLINE_BYTES: Final = 64 * 1024
_DEDICATED_BYTES: Final = 4 * 1024 * 1024
_PACK_BYTES: Final = 1024 * 1024 * 1024
_MAX_ID: Final = (1 << 32) - 1


class BlobColumnsWriter:
    """Writer of the blobs of one data file.

    Parameters
    ----------
    store
        The object store.
    path
        Path of the data file.
    schema
        Schema of the batches.
    sink
        Function that writes bytes to the data file and returns their position.
    pack_bytes
        Size limit of shared blob files whose field does not set one.
    base_ids
        Ids of the base paths of the table.
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
        self._store, self._path, self._schema, self._sink = store, path, schema, sink
        self._base_ids = base_ids
        self._types = [field.data_type for field in stored_schema(schema).fields]
        self._pack_bytes = _PACK_BYTES if pack_bytes is None else pack_bytes
        self._packs: dict[int, tuple[int, ObjectWriter]] = {}  # blob id and open file, by field id
        self._written: list[str] = []

    def describe(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Write the blobs of a batch and return the batch with descriptions in place of blobs."""
        arrays = [
            replace_blobs(array, field, data_type, self._write)
            for field, array, data_type in zip(self._schema.fields, batch.columns, self._types)
        ]
        return pa.RecordBatch.from_arrays(arrays, self._schema.names)

    def finish(self) -> None:
        """Close the open blob files."""
        for _, file in self._packs.values():
            file.close()
        self._packs.clear()

    def abandon(self) -> None:
        """Remove all blob files."""
        for _, file in self._packs.values():
            file.abort()
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
        is_dedicated = sizes > _threshold(field, "dedicated-size", _DEDICATED_BYTES)
        is_packed = (sizes > _threshold(field, "inline-size", _INLINE_BYTES)) & ~is_dedicated
        kinds = np.select([is_dedicated, is_packed], [BlobKind.DEDICATED, BlobKind.PACKED], BlobKind.INLINE)
        positions, blob_ids = np.zeros((2, len(array)), np.int64)
        is_inline = (sizes > 0) & (kinds == BlobKind.INLINE)
        if is_inline.any():
            written = describe_blobs(data if is_inline.all() else data.filter(pa.array(is_inline)), self._sink)
            positions[is_inline] = np.asarray(written.field(0)).astype(np.int64)
        max_pack_bytes = _threshold(field, "pack-file-size", self._pack_bytes)
        for row in np.flatnonzero(is_dedicated | is_packed).tolist():
            payload = data[row].as_buffer()
            if is_dedicated[row]:
                blob_ids[row], file = self._open()
                with file:
                    file.write(payload)
            else:
                blob_ids[row], positions[row] = self._write_packed(field.id, payload, max_pack_bytes)
        return build_descriptions(kinds, positions, sizes, blob_ids, valid)

    def _check_prepared(self, field: Field, array: pa.StructArray) -> None:
        """Raise InvalidInputError unless prepared blobs are inline, or managed objects of a table that allows them."""
        kinds = set(array.field("kind").filter(array.is_valid()).unique().to_pylist())
        if kinds & {BlobKind.PACKED, BlobKind.DEDICATED}:
            raise InvalidInputError(
                f"column {field.name!r}: blob files must be stored next to the data file that describes them, but "
                "this write chooses a new name; write the data file with LanceFileWriter and commit it",
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
                    f"column {field.name!r}: a managed blob refers to base path {unknown[0]}; the table has {known}",
                    column=field.name,
                )

    def _write_packed(self, field_id: int, data: pa.Buffer, max_pack_bytes: int) -> tuple[int, int]:
        """Append a blob to the shared file of a column; return the id of the file and the position."""
        blob_id, file = self._packs.get(field_id) or self._open()
        if file.tell() and file.tell() + data.size > max_pack_bytes:
            file.close()
            blob_id, file = self._open()
        self._packs[field_id] = blob_id, file
        position = file.tell()
        file.write(data)
        return blob_id, position

    def _open(self) -> tuple[int, ObjectWriter]:
        """Open the next blob file and return its id and writer."""
        blob_id = len(self._written) + 1
        if blob_id > _MAX_ID:
            raise InvalidInputError(f"{self._path}: more than {_MAX_ID} blob files for one data file")
        path = blob_file_path(self._path, blob_id)
        self._written.append(path)
        return blob_id, self._store.open_writer(path)


def _threshold(field: Field, name: str, default: int) -> int:
    """Return a size in bytes from the metadata of a field."""
    text = field.metadata.get(f"lance-encoding:blob-{name}-threshold", b"").decode("ascii", "replace")
    return int(text) if text.isdecimal() and len(text) < 19 else default


def check_blob_nesting(schema: Schema) -> None:
    """Raise UnsupportedFeatureError for blobs inside fields other than structs and lists."""
    for field in schema.walk():
        if field.children and not field.is_struct and not field.is_list and not field.is_blob_v2:
            for descendant in field.walk():
                if descendant.is_blob_v2:
                    raise UnsupportedFeatureError(
                        f"column {descendant.name!r}: blobs inside {field.logical_type!r} cannot be written",
                        feature="blobs in fixed-size lists and maps",
                    )


def _check_values(field: Field, array: pa.StructArray, data: pa.Array, valid: npt.NDArray[np.bool_]) -> None:
    uri = array.field("uri")
    if uri.null_count < len(uri) and (uri.is_valid().to_numpy(zero_copy_only=False) & valid).any():
        raise UnsupportedFeatureError(
            f"column {field.name!r}: external blobs (a uri) cannot be written; pass their bytes",
            feature="external blobs",
            column=field.name,
        )
    if data.null_count and (data.is_null().to_numpy(zero_copy_only=False) & valid).any():
        raise InvalidInputError(
            f"column {field.name!r}: a blob has neither data nor uri; pass a null struct for a null blob"
        )
