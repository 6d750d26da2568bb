"""Write operations: create, append and overwrite, also without the commit for distributed writers.

    schema ─► conform.conform_schema ┐
                                     ├─► Destination.write ─► fragments ─► transaction ─► commit.loop
    batches ─────────────────────────┘   conform.conform_batches, then table.data_files

A failed write publishes no version and removes its files. If the outcome of the commit is unknown, the files are kept,
because the commit may still become visible.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from lancetable import telemetry
from lancetable.commit.commit_loop import commit_transaction
from lancetable.commit.create_table import create_table
from lancetable.commit.publish import discarding_on_failure
from lancetable.errors import AlreadyExistsError, SchemaMismatchError, UnsupportedFeatureError
from lancetable.file.blobs.descriptions import contains_blobs
from lancetable.file.writer import FileWriter
from lancetable.format import transaction as tx
from lancetable.format.manifest_naming import ManifestNamingScheme
from lancetable.format.paths import TRANSACTIONS_DIR, data_path, join, parse_transaction_name
from lancetable.format.schema import Schema
from lancetable.format.transaction import Transaction
from lancetable.format.version import STABLE_VERSION, FileVersion
from lancetable.ops.write.blob_columns import blob_schema
from lancetable.ops.write.destination import DEFAULT_OPTIONS, Destination, WriteMode, WriteOptions
from lancetable.ops.write.schema_enforcement import conform_schema
from lancetable.store.memory import MemoryStore
from lancetable.store.open import open_store
from lancetable.table.metadata_cache import TableCache
from lancetable.table.version import Table, TableVersion

logger = logging.getLogger(__name__)


def create(
    uri: str | os.PathLike[str],
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    options: WriteOptions = DEFAULT_OPTIONS,
    *,
    storage_options: Mapping[str, str] | None = None,
    commit_lock: Any = None,
    cache: TableCache | None = None,
    config: Mapping[str, str] | None = None,
    replace_existing: bool = False,
) -> TableVersion:
    """Create a table of `batches` and return its version 1.

    Parameters
    ----------
    uri
        URI of the table.
    schema
        Schema of the batches.
    batches
        Rows of the table.
    options
        Options of the write.
    storage_options
        Options of the store.
    commit_lock
        Lock for stores without an atomic create-if-absent.
    cache
        Cache for metadata; a new one by default.
    config
        Config of the table.
    replace_existing
        Replace an existing table in memory; see `MemoryStore.replace_existing`.

    Raises
    ------
    AlreadyExistsError
        If a table exists. Nothing is read or written in this case.
    InvalidSchemaError, UnsupportedFeatureError
        If the schema cannot be stored.
    SchemaMismatchError
        If a required column contains nulls.
    CommitStateUnknownError
        If the outcome of the commit is unknown.
    """
    table = Table.of_uri(uri, storage_options, commit_lock, cache)
    store, exists = table.store, table.exists()
    if exists and not (replace_existing and isinstance(store, MemoryStore)):
        raise AlreadyExistsError(f"Dataset already exists: {table.uri}", path=table.uri)
    stored = _new_schema(schema, options.file_version or STABLE_VERSION)
    destination = Destination.of_new_table(table, options)
    if exists and isinstance(store, MemoryStore):
        store.replace_existing()
    fragments = destination.write(stored, batches, options)
    operation = tx.Overwrite(tuple(fragments), stored, initial_bases=tuple(destination.bases.values()))
    with discarding_on_failure(lambda: destination.discard(fragments)):
        destination.sync_bases()
        return create_table(
            table,
            Transaction.create(0, operation, properties=options.properties),
            file_version=destination.file_version,
            naming=ManifestNamingScheme.V2 if options.v2_manifest_paths else ManifestNamingScheme.V1,
            config=config,
            stable_row_ids=options.stable_row_ids,
        )


def append(
    version: TableVersion,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    options: WriteOptions = DEFAULT_OPTIONS,
) -> TableVersion:
    """Append rows and return the version that contains them.

    Columns may be in any order. Nullable columns, also inside structs, may be missing and are null in the new rows.
    Raises SchemaMismatchError ("Append with different schema ...") for other columns or types and for nulls in a
    required column; CommitConflictError, CommitStateUnknownError.
    """
    return _commit(version, *_write_to_table(version, schema, batches, options, "append"), options)


def overwrite(
    version: TableVersion,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    options: WriteOptions = DEFAULT_OPTIONS,
) -> TableVersion:
    """Replace rows and schema and return the new version. Older versions remain readable.

    Fields get new ids, indices are dropped, config and table metadata are kept. `options.file_version` changes the data
    format of the table. Raises the errors of `create` except AlreadyExistsError, and CommitConflictError.
    """
    return _commit(version, *_write_to_table(version, schema, batches, options, "overwrite"), options)


def _commit(
    version: TableVersion, destination: Destination, transaction: Transaction, options: WriteOptions
) -> TableVersion:
    operation = transaction.operation
    assert isinstance(operation, tx.Append | tx.Overwrite)
    with discarding_on_failure(lambda: destination.discard(operation.fragments)):
        destination.sync_bases()
        file_version = options.file_version if isinstance(operation, tx.Overwrite) else None
        return commit_transaction(version, transaction, file_version=file_version)


def write_fragments(
    target: TableVersion | str | os.PathLike[str],
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    options: WriteOptions = DEFAULT_OPTIONS,
    *,
    mode: WriteMode = "append",
    storage_options: Mapping[str, str] | None = None,
) -> Transaction:
    """Write durable data files without committing them, and return the transaction that makes them visible.

    The transaction is an Append for mode "append" on a version, otherwise an Overwrite; its fragments have id 0. Raises
    the errors of `append` and `overwrite`.

    Parameters
    ----------
    target
        The version on which the transaction is based, or the URI of a new table.
    schema
        Schema of the batches.
    batches
        Rows to write.
    options
        Options of the write.
    mode
        "append" checks the rows against the schema of the table; other modes replace the rows and the schema.
    storage_options
        Storage options, if `target` is a URI.
    """
    if isinstance(target, TableVersion):
        destination, transaction = _write_to_table(target, schema, batches, options, mode)
    else:
        table = Table.of_uri(target, storage_options)
        stored = _new_schema(schema, options.file_version or STABLE_VERSION)
        destination = Destination.of_new_table(table, options)
        fragments = tuple(destination.write(stored, batches, options))
        operation = tx.Overwrite(fragments, stored, initial_bases=tuple(destination.bases.values()))
        transaction = Transaction.create(0, operation, properties=options.properties)
    assert isinstance(transaction.operation, tx.Append | tx.Overwrite)
    written = transaction.operation.fragments
    with discarding_on_failure(lambda: destination.discard(written)):
        destination.sync_bases()
        destination.table.store.sync(destination.table.base)
    return transaction


def _write_to_table(
    version: TableVersion,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    options: WriteOptions,
    mode: WriteMode,
) -> tuple[Destination, Transaction]:
    version.check_writable()
    destination = Destination.of_table(version, options, mode)
    if mode == "append":
        stored = _append_schema(version, schema, destination.file_version)
    else:
        stored = _new_schema(schema, destination.file_version)
    fragments = tuple(destination.write(stored, batches, options))
    operation = tx.Append(fragments) if mode == "append" else tx.Overwrite(fragments, stored)
    return destination, Transaction.create(version.version, operation, properties=options.properties)


def _new_schema(schema: pa.Schema, file_version: FileVersion) -> Schema:
    return Schema.from_arrow(blob_schema(schema, file_version))


def check_new_schema(schema: pa.Schema, file_version: FileVersion) -> None:
    """Raise InvalidSchemaError or UnsupportedFeatureError if data files of a version cannot store these columns."""
    stored = _new_schema(schema, file_version)
    if not file_version.is_legacy:  # the writer of 0.1 files checks columns and values
        FileWriter(MemoryStore.private().open_writer("schema"), stored, file_version)


def _append_schema(version: TableVersion, schema: pa.Schema, file_version: FileVersion) -> Schema:
    """Return the fields of the table that the data provides.

    Raises SchemaMismatchError if the schemas do not match, and UnsupportedFeatureError for a missing column in format
    0.1, in which every fragment has all columns.
    """
    table_format = version.manifest.file_version
    if file_version.is_legacy != table_format.is_legacy:
        raise SchemaMismatchError(
            f"data files of version {file_version} cannot be mixed with data files of a table in {table_format}"
        )
    if any(map(contains_blobs, version.schema.fields)):
        schema = blob_schema(schema, file_version)
    stored = conform_schema(Schema.from_arrow(schema), version.schema)
    if file_version.is_legacy:
        for field in version.schema.walk():
            if field.id not in stored.by_id:
                path = version.schema.path_of(field.id)
                raise UnsupportedFeatureError(
                    f"column {path!r} is missing: format 0.1 requires every column; add it or migrate the table",
                    feature="rows without a column in 0.1",
                    column=path,
                )
    return stored


def discard_fragments(
    uri: str | os.PathLike[str],
    names: Iterable[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    transaction_uuid: str | None = None,
) -> bool:
    """Remove data files that were written and will not be committed; return True if they were removed.

    `names` are relative to the `data` directory. Nothing is removed if a transaction file with `transaction_uuid`,
    which would commit the files, exists: a commit writes this file before the version, and removes it after a definite
    failure.
    """
    store, base = open_store(uri, storage_options)
    if transaction_uuid is not None:
        for meta in store.list_names(join(base, TRANSACTIONS_DIR)):
            parsed = parse_transaction_name(meta.name)
            if parsed is not None and parsed[1] == transaction_uuid:
                logger.warning(
                    "%s: transaction %s may still be committed, so its data files are kept",
                    uri,
                    transaction_uuid,
                    extra=telemetry.fields("write.files_kept", uri, transaction=transaction_uuid),
                )
                return False
    store.delete([data_path(base, name) for name in names])
    return True
