"""Writes: data files of new fragments, and the commits that use them (create, append, overwrite).

    batches ─ conform (order, storage types, required columns) ─► table.data_files ─► fragments ─► commit.loop
              └──────────── also without the commit: write_fragments, for distributed writers ────────┘

A failed write leaves nothing visible and removes its files. If the outcome of the commit is unknown, the commit may
still become visible, so its files are kept.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import pyarrow as pa

from lancetable.commit.loop import (
    DEFAULT_MAX_RETRIES,
    DEFAULT_TIMEOUT_SECONDS,
    commit_transaction,
    create_table,
)
from lancetable.errors import (
    AlreadyExistsError,
    CommitStateUnknownError,
    InvalidOperationError,
    LanceError,
    SchemaMismatchError,
    UnsupportedFeatureError,
)
from lancetable.file.blobs.descriptor import holds_blobs, with_prepared
from lancetable.file.blobs.prepared import is_prepared, plain_field, with_fields
from lancetable.file.column import holds_null
from lancetable.file.extension import storage_array
from lancetable.file.reader import FAMILIES
from lancetable.format import flags
from lancetable.format import transaction as tx
from lancetable.format.fragment import Fragment
from lancetable.format.logical_types import EXTENSION_NAME_KEY
from lancetable.format.manifest import BasePath
from lancetable.format.paths import TRANSACTIONS_DIR, ManifestNaming, data_path, join, parse_transaction_name
from lancetable.format.schema import BLOB_KEY, BLOB_V2_NAME, Field, Schema
from lancetable.format.transaction import Transaction
from lancetable.format.version import DEFAULT_VERSION, FileVersion
from lancetable.handlers.choose import choose_handler
from lancetable.ops.tracker import Tracker
from lancetable.store.base import ObjectStore
from lancetable.store.memory import MemoryStore
from lancetable.store.open import open_store
from lancetable.table.base_paths import WriteTarget, all_targets, resolve_targets, with_ids
from lancetable.table.cache import TableCache
from lancetable.table.data_files import WriteLimits, WriteProgress, remove_from, write_data_files
from lancetable.table.dictionaries import dictionaries_of
from lancetable.table.version import TableVersion

__all__ = [
    "WriteMode",
    "WriteOptions",
    "append",
    "conform",
    "create",
    "discard_fragments",
    "overwrite",
    "sync_others",
    "target_places",
    "write_fragments",
]

logger = logging.getLogger(__name__)

_TINY_ROWS: Final = 1024  # batches with fewer rows and bytes than this are joined, up to _MAX_JOINED of them
_TINY_BYTES: Final = 16 << 10
_MAX_JOINED: Final = 256
_BYTES_OR_URI = pa.struct([("data", pa.large_binary()), ("uri", pa.string())])

WriteMode = Literal["create", "append", "overwrite"]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of writes and commits.

    With `file_version` None, the format of the table is kept, or the default is used for a new table.
    """

    limits: WriteLimits = field(default_factory=WriteLimits)
    file_version: FileVersion | None = None
    progress: WriteProgress | None = None
    properties: Mapping[str, str] = field(default_factory=dict)  # properties of the transaction
    v2_manifest_paths: bool = True
    stable_row_ids: bool = False  # only for a new table
    max_retries: int = DEFAULT_MAX_RETRIES
    timeout_s: float = DEFAULT_TIMEOUT_SECONDS
    initial_bases: tuple[BasePath, ...] = ()  # registered with a new table
    target_bases: tuple[
        str, ...
    ] = ()  # names or paths of the bases that receive new files in turn; empty for the table alone
    target_all_bases: bool = False  # new files go to all bases in turn
    include_primary: bool = True  # with `target_all_bases`: the table too
    tracker: Tracker | None = None  # counts the rows and files written


def create(
    uri: str | os.PathLike[str],
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    options: WriteOptions | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    commit_lock: Any = None,
    cache: TableCache | None = None,
    config: Mapping[str, str] | None = None,
    begin_anew: bool = False,
) -> TableVersion:
    """Create a table of `batches` and return its version 1.

    Parameters
    ----------
    uri
        Address of the table.
    schema
        Schema of the batches.
    batches
        Rows of the table.
    options
        Options of the write.
    storage_options
        Options of the store.
    commit_lock
        Lock for stores that cannot create an object exclusively.
    cache
        Cache for metadata; a new one by default.
    config
        Config of the table.
    begin_anew
        Replace an existing table in memory; see `MemoryStore.begin_anew`.

    Raises
    ------
    AlreadyExistsError
        If a table exists, before anything is read or written.
    InvalidSchemaError, UnsupportedFeatureError
        If the schema cannot be stored.
    SchemaMismatchError
        If a required column contains nulls.
    CommitStateUnknownError
        If the outcome of the commit is unknown.
    """
    options = options or WriteOptions()
    store, base = open_store(uri, storage_options)
    address = os.fspath(uri)
    handler = choose_handler(store, address, commit_lock, storage_options)
    exists = handler.latest(store, base) is not None
    if exists and not (begin_anew and isinstance(store, MemoryStore)):
        raise AlreadyExistsError(f"Dataset already exists: {address}", path=address)
    file_version = options.file_version or DEFAULT_VERSION
    stored = Schema.from_arrow(blob_schema(schema, file_version))
    bases, places = _bases_of_new(store, base, address, options)
    if exists and isinstance(store, MemoryStore):
        store.begin_anew()
    options = _with_bases(options, (each.id for each in bases))
    fragments = write_files(store, base, address, stored, batches, options, file_version, places=places)
    operation = tx.Overwrite(tuple(fragments), stored, initial_bases=bases)
    with discarding(store, places, fragments):
        sync_others(store, places)
        return create_table(
            store,
            base,
            address,
            handler,
            Transaction.create(0, operation, properties=options.properties),
            file_version=file_version,
            cache=TableCache() if cache is None else cache,
            storage_options=storage_options,
            naming=ManifestNaming.V2 if options.v2_manifest_paths else ManifestNaming.V1,
            config=config,
            stable_row_ids=options.stable_row_ids,
        )


def append(
    version: TableVersion,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    options: WriteOptions | None = None,
) -> TableVersion:
    """Append rows and return the version that contains them.

    Columns may be in any order; nullable ones, also inside structs, may be missing and read as null. Raises
    SchemaMismatchError ("Append with different schema ...") for other columns or types and for nulls in a required
    column; CommitConflictError, CommitStateUnknownError.
    """
    options = options or WriteOptions()
    transaction = write_fragments(version, schema, batches, options, mode="append", sync=False)
    return _commit(version, transaction, options)


def overwrite(
    version: TableVersion,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    options: WriteOptions | None = None,
) -> TableVersion:
    """Replace rows and schema and return the new version; older ones stay readable.

    Fields get new ids, indices are dropped, config and table metadata stay. `options.file_version` changes the table's
    data
    format. Raises the errors of `create` except AlreadyExistsError, and CommitConflictError.
    """
    options = options or WriteOptions()
    transaction = write_fragments(version, schema, batches, options, mode="overwrite", sync=False)
    return _commit(version, transaction, options)


def write_fragments(
    target: TableVersion | str | os.PathLike[str],
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    options: WriteOptions | None = None,
    *,
    mode: WriteMode = "append",
    storage_options: Mapping[str, str] | None = None,
    sync: bool = True,
) -> Transaction:
    """Write data files without committing them, and return the transaction that makes them visible.

    The transaction is an Append for mode "append" on a version, otherwise an Overwrite; its fragments have id 0. Raises
    the
    errors of `append` and `overwrite`.

    Parameters
    ----------
    target
        The version to build on, or the address of a new table.
    schema
        Schema of the batches.
    batches
        Rows to write.
    options
        Options of the write.
    mode
        "append" checks the rows against the schema of the table; other modes replace it.
    storage_options
        Options of the store, if `target` is an address.
    sync
        Make the files durable before returning.
    """
    options = options or WriteOptions()
    operation: tx.Append | tx.Overwrite
    if not isinstance(target, TableVersion):
        store, base = open_store(target, storage_options)
        version = options.file_version or DEFAULT_VERSION
        stored = Schema.from_arrow(blob_schema(schema, version))
        bases, places = _bases_of_new(store, base, os.fspath(target), options)
        options = _with_bases(options, (each.id for each in bases))
        fragments = write_files(store, base, os.fspath(target), stored, batches, options, version, places=places)
        operation, read_version = tx.Overwrite(tuple(fragments), stored, initial_bases=bases), 0
    else:
        read_version = target.version
        store, base = target.store, target.base
        table_format = _check_target(target)
        places = target_places(target, options, mode)
        file_version = options.file_version or table_format
        if mode == "append":
            if file_version.is_legacy != table_format.is_legacy:
                raise SchemaMismatchError(
                    f"data files of version {file_version} cannot be mixed with data files of a table in {table_format}"
                )
            if any(map(holds_blobs, target.schema.fields)):
                schema = blob_schema(schema, file_version)
            stored = conforming(Schema.from_arrow(schema), target.schema)
            if file_version.is_legacy:
                _check_complete(stored, target.schema)
        else:
            stored = Schema.from_arrow(blob_schema(schema, file_version))
        dictionaries = dictionaries_of(target) if mode == "append" else None
        options = _with_bases(options, target.manifest.base_paths)
        fragments = write_files(store, base, target.uri, stored, batches, options, file_version, dictionaries, places)
        operation = tx.Append(tuple(fragments)) if mode == "append" else tx.Overwrite(tuple(fragments), stored)
    with discarding(store, places, fragments):
        sync_others(store, places)
        if sync:
            store.sync(base)
    return Transaction.create(read_version, operation, properties=options.properties)


def discard_fragments(
    uri: str | os.PathLike[str],
    names: Iterable[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    transaction_uuid: str | None = None,
) -> bool:
    """Remove data files that were written and will not be committed; return whether they were removed.

    The files are given by their names below `data`. Nothing is removed while a file of the transaction
    `transaction_uuid`,
    which would commit them, exists: it is written before the version and removed when the commit definitely failed.
    """
    store, base = open_store(uri, storage_options)
    if transaction_uuid is not None:
        for meta in store.list_names(join(base, TRANSACTIONS_DIR)):
            parsed = parse_transaction_name(meta.name)
            if parsed is not None and parsed[1] == transaction_uuid:
                logger.warning(
                    "%s: transaction %s may still be committed, so its data files are kept", uri, transaction_uuid
                )
                return False
    store.delete([data_path(base, name) for name in names])
    return True


def _check_target(version: TableVersion) -> FileVersion:
    """Return the data format of a table to write to. Raises UnsupportedFeatureError before anything is written."""
    manifest = version.manifest
    flags.check_writable(manifest.writer_flags, version.uri, reader_flags=manifest.reader_flags)
    return manifest.file_version


def _commit(version: TableVersion, transaction: Transaction, options: WriteOptions) -> TableVersion:
    operation = transaction.operation
    assert isinstance(operation, tx.Append | tx.Overwrite)
    places = target_places(version, options, "append")
    with discarding(version.store, places, operation.fragments):
        return commit_transaction(
            version,
            transaction,
            max_retries=options.max_retries,
            timeout_s=options.timeout_s,
            file_version=options.file_version if isinstance(operation, tx.Overwrite) else None,
        )


def target_places(version: TableVersion, options: WriteOptions, mode: WriteMode) -> tuple[WriteTarget, ...]:
    """Return the locations for new files of an existing table.

    Raises InvalidOperationError for bases that the table does not list, and for `initial_bases`.
    """
    if options.initial_bases:
        raise InvalidOperationError(
            f"Cannot register new bases in {mode.capitalize()} mode: a table gets its first ones when it is created, "
            "register others with add_bases"
        )
    bases = version.manifest.base_paths if options.target_bases or options.target_all_bases else {}
    return _places(version.store, version.base, version.uri, bases, options)


def _with_bases(options: WriteOptions, base_ids: Iterable[int]) -> WriteOptions:
    """Return the options with the base paths that managed blobs may reference."""
    return replace(options, limits=replace(options.limits, base_ids=frozenset(base_ids)))


def _bases_of_new(
    store: ObjectStore, base: str, uri: str, options: WriteOptions
) -> tuple[tuple[BasePath, ...], tuple[WriteTarget, ...]]:
    bases = with_ids(options.initial_bases)
    return bases, _places(store, base, uri, {each.id: each for each in bases}, options)


def _places(
    store: ObjectStore, base: str, uri: str, bases: Mapping[int, BasePath], options: WriteOptions
) -> tuple[WriteTarget, ...]:
    if not options.target_all_bases:
        return resolve_targets(store, base, uri, bases, options.target_bases)
    if options.target_bases:
        raise InvalidOperationError("Cannot specify target_all_bases together with target_bases")
    return all_targets(store, base, bases, include_table=options.include_primary)


def sync_others(store: ObjectStore, places: Iterable[WriteTarget]) -> None:
    """Sync files outside of the table's own directory; the commit syncs only those inside."""
    for place in places:
        if place.base_id is not None:
            store.sync(place.directory)


@contextmanager
def discarding(store: ObjectStore, places: Sequence[WriteTarget], fragments: Iterable[Fragment]) -> Iterator[None]:
    """Remove data files if the commit in the block definitely failed."""
    try:
        yield
    except CommitStateUnknownError:
        raise
    except LanceError:
        # After other exceptions, such as an interrupt, the commit may already be published.
        remove_from(store, places, fragments)
        raise


def write_files(
    store: ObjectStore,
    base: str,
    uri: str,
    schema: Schema,
    batches: Iterable[pa.RecordBatch],
    options: WriteOptions,
    file_version: FileVersion,
    dictionaries: Mapping[int, pa.Array] | None = None,
    places: Sequence[WriteTarget] = (),
) -> list[Fragment]:
    """Write data files for the batches and return their fragments. Raises the errors of `append`."""
    if file_version not in FAMILIES:
        raise UnsupportedFeatureError(
            f"writing data files of version {file_version} is not supported yet: {uri}",
            feature=f"writing data files of version {file_version}",
        )
    if options.limits.keep_arrays and options.limits.max_bytes_per_file > _MAX_JOINED * _TINY_BYTES:
        batches = _coalesced(batches)
    tracker = options.tracker
    return write_data_files(
        store,
        base,
        schema,
        conform(batches if tracker is None else tracker.counted(batches), schema),
        options.limits,
        file_version,
        options.progress,
        dictionaries,
        places=places,
        completed=None if tracker is None else tracker.wrote,
    )


# --- schema of appended data
# -------------------------------------------------------------------------------------------


def _check_complete(stored: Schema, table: Schema) -> None:
    """Raise UnsupportedFeatureError for a missing column: every fragment in 0.1 has all columns."""
    for each in table.walk():
        if each.id not in stored.by_id:
            path = table.path_of(each.id)
            raise UnsupportedFeatureError(
                f"column {path!r} is missing: format 0.1 has no nulls, so rows must have all columns",
                feature="rows without a column in 0.1",
                column=path,
            )


def conforming(incoming: Schema, table: Schema) -> Schema:
    """Return the part of the table's schema that `incoming` provides, in the table's order and with its ids.

    Raises SchemaMismatchError for other columns or types, and for a missing required column.
    """
    present: list[int] = []
    mismatch = _schema_mismatch(incoming.fields, table.fields, "", present)
    if mismatch is None and not present and table.fields:
        mismatch = f"fields did not match, missing=[{', '.join(table.names)}], unexpected=[]"
    if mismatch is not None:
        raise SchemaMismatchError(f"Append with different schema: {mismatch}")
    return table.project_ids(present)


def _schema_mismatch(
    incoming: tuple[Field, ...], table: tuple[Field, ...], prefix: str, present: list[int]
) -> str | None:
    """Return the mismatch of one level of fields, or None; add the ids of complete fields to `present`."""
    names = {each.name: each for each in incoming}
    known = {each.name for each in table}
    unexpected = [prefix + name for name in names if name not in known]
    missing = [prefix + each.name for each in table if each.name not in names and not each.nullable]
    if unexpected or missing:
        return f"fields did not match, missing=[{', '.join(missing)}], unexpected=[{', '.join(unexpected)}]"
    for expected in table:
        found = names.get(expected.name)
        if found is None:
            continue
        path = prefix + expected.name
        if expected.is_blob_v2 and found.is_blob_v2:
            # Children that reference a part of an external object are optional.
            present.append(expected.id)
            continue
        # pylance keeps the logical type without ".struct" for lists whose blobs once had the first form.
        if found.logical_type.removesuffix(".struct") != expected.logical_type.removesuffix(".struct"):
            return f"`{path}` should have type {expected.logical_type} but type was {found.logical_type}"
        if expected.is_struct and not expected.is_packed and expected.children:
            mismatch = _schema_mismatch(found.children, expected.children, f"{path}.", present)
        else:
            present.append(expected.id)
            mismatch = _schema_mismatch(found.children, expected.children, f"{path}.", [])
        if mismatch is not None:
            return f"`{path}` had mismatched children: {mismatch}"
    return None


# --- batches for the file writer
# ----------------------------------------------------------------------------------------


def _coalesced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Coalesce tiny batches, whose memory must not change; a batch costs as much as some thousand values."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        tiny = batch.num_rows < _TINY_ROWS and batch.nbytes < _TINY_BYTES
        if waiting and (not tiny or len(waiting) == _MAX_JOINED or batch.schema != waiting[0].schema):
            yield from _join(waiting)
            waiting = []
        if tiny:
            waiting.append(batch)
        else:
            yield batch
    yield from _join(waiting)


def _join(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    try:
        columns = [pa.concat_arrays(arrays) for arrays in zip(*[batch.columns for batch in batches], strict=True)]
    except pa.ArrowException:  # dictionaries that cannot be unified
        return batches
    return [pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)] if columns else batches


def conform(batches: Iterable[pa.RecordBatch], schema: Schema) -> Iterator[pa.RecordBatch]:
    """Yield each batch with the columns of `schema` in order, as storage types, after checking required columns.

    Raises SchemaMismatchError for nulls in a required column or a batch without a column.
    """
    has_blobs = any(map(holds_blobs, schema.fields))
    target = schema.to_storage_arrow()
    table = schema
    required = [(place, each) for place, each in enumerate(schema.fields) if _contains_required(each)]
    for batch in batches:
        names = batch.schema.names
        if has_blobs:
            schema = _as_prepared(table, batch.schema)
            target = schema.to_storage_arrow()
        if names == schema.names and all(
            found.type.equals(wanted.type) for found, wanted in zip(batch.schema, target, strict=True)
        ):
            columns = batch.columns
        else:
            columns = [
                storage_array(_blobs(_column(batch, names, each), each), each.data_type, each.name)
                for each in schema.fields
            ]
        for place, each in required:
            _check_required(columns[place], each, each.name)
        yield pa.RecordBatch.from_arrays(columns, schema=target)


def _column(batch: pa.RecordBatch, names: list[str], field: Field) -> pa.Array:
    if names.count(field.name) != 1:
        raise SchemaMismatchError(f"expected 1 column {field.name!r} in a batch, got {names.count(field.name)}")
    return batch.column(field.name)


def _as_prepared(schema: Schema, found: pa.Schema) -> Schema:
    """Return the schema of a table, with blobs in prepared form where a batch has them so."""
    types = {each.name: each.type for each in found}
    fields = tuple([with_prepared(each, types.get(each.name, each.data_type)) for each in schema.fields])
    return schema if all(new is old for new, old in zip(fields, schema.fields)) else Schema(fields, schema.metadata)


def _blobs(array: pa.Array, field: Field) -> pa.Array:
    """Convert blobs of the second form, also inside structs and lists, to the children of the schema.

    Accepts bytes or other children. Values of other types are returned unchanged.
    """
    if not holds_blobs(field):
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    found = array.type
    if found.equals(field.data_type):
        return array
    if field.is_blob_v2:
        return _blob(array, field)
    if field.is_list and _is_list(found):
        items = _blobs(array.values, field.children[0])
        item = found.value_field.with_type(items.type)
        data_type = pa.large_list(item) if pa.types.is_large_list(found) else pa.list_(item)
        validity_and_offsets = array.buffers()[:2]
        return pa.Array.from_buffers(
            data_type, len(array), validity_and_offsets, array.null_count, array.offset, [items]
        )
    if field.is_struct and pa.types.is_struct(found) and found.num_fields:
        known = {child.name: child for child in field.children}
        parts = [
            _blobs(array.field(number), known[each.name]) if each.name in known else array.field(number)
            for number, each in enumerate(found)
        ]
        fields = [each.with_type(part.type) for each, part in zip(found, parts)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null() if array.null_count else None)
    return array


def _blob(array: pa.Array, field: Field) -> pa.Array:
    if pa.types.is_large_binary(array.type):
        given = {"data": array}
    elif pa.types.is_struct(array.type):
        given = {part.name: array.field(part.name) for part in array.type}
    else:
        return array
    parts = [
        given[part.name] if part.name in given else pa.nulls(len(array), part.data_type) for part in field.children
    ]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(parts, fields=list(field.data_type), mask=mask)


def blob_schema(schema: pa.Schema, version: FileVersion) -> pa.Schema:
    """Return the schema with blobs in the form of new tables of a version: the second form from 2.2 on."""
    if version is not FileVersion.V2_2:
        return schema
    return pa.schema([_blob_field(each) for each in schema], schema.metadata)


def _blob_field(field: pa.Field) -> pa.Field:
    kind = field.type
    if is_prepared(field):
        return pa.field(field.name, _BYTES_OR_URI, field.nullable, plain_field(field).metadata)
    if pa.types.is_large_binary(kind):
        if BLOB_KEY.encode() not in (field.metadata or {}):
            return field
        return pa.field(field.name, _BYTES_OR_URI, field.nullable, {EXTENSION_NAME_KEY: BLOB_V2_NAME})
    return with_fields(field, _blob_field)


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(data_type) or pa.types.is_large_list(data_type))


def _contains_required(field: Field) -> bool:
    return any(not child.nullable for child in field.walk())


def _check_required(array: pa.Array, each: Field, path: str) -> None:
    """Raise SchemaMismatchError for a null where the schema allows none. Children of a null parent do not count."""
    if not each.nullable and holds_null(array):
        raise SchemaMismatchError(
            f"The field `{path}` contained null values even though the field is marked non-null in the schema"
        )
    if not each.children or not any(_contains_required(child) for child in each.children):
        return
    if each.is_struct:
        valid = array.is_valid() if array.null_count else None
        for position, child in enumerate(each.children):
            values = array.field(position)
            _check_required(values if valid is None else values.filter(valid), child, f"{path}.{child.name}")
    elif _is_list(array.type):
        _check_required(array.flatten(), each.children[0], f"{path}.{each.children[0].name}")
