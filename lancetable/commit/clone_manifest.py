"""First version of a clone or a branch: the manifest of its source, relative to another root.

    shallow   files below the source's root get the id of a new base path, which is that root
    deep      all base paths are removed: every file was copied below the new root

A clone starts with the version number of its source and has no history before it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from lancetable.commit.create_table import publish_first
from lancetable.commit.legacy_dictionaries import dictionary_prefix
from lancetable.commit.manifest_draft import ManifestParts, writer_version
from lancetable.errors import UnsupportedFeatureError
from lancetable.format import feature_flags
from lancetable.format import transaction as tx
from lancetable.format.index import index_messages
from lancetable.format.manifest import BasePath
from lancetable.format.paths import transaction_name
from lancetable.format.transaction import Transaction
from lancetable.proto import table_pb2
from lancetable.table.version import Table, TableVersion


def commit_clone(source: TableVersion, operation: tx.Clone, table: Table) -> TableVersion:
    """Publish the version of `source` as the first version of `table`, and return it.

    Parameters
    ----------
    source
        The version to clone.
    operation
        The kind of clone. For a deep clone, all files must already be copied.
    table
        The clone, which does not exist yet.

    Raises
    ------
    AlreadyExistsError
        If the table exists.
    UnsupportedFeatureError
        If a shallow clone would need row ids or versions that are stored in separate files.
    CommitStateUnknownError
        If the outcome is unknown.
    StoreError
        If the store fails.
    """
    transaction = Transaction.create(source.version, operation)
    message = source.manifest.to_proto()
    indices = index_messages(source.file.index_section(source.store), source.location.path)
    if operation.is_shallow:
        _reference_source(message, indices, operation)
    else:
        _remove_bases(message, indices)
    message.ClearField("branch")
    if operation.branch_name is not None:
        message.branch = operation.branch_name
    message.timestamp.seconds, message.timestamp.nanos = divmod(time.time_ns(), 1_000_000_000)
    message.writer_version.CopyFrom(writer_version())
    message.transaction_file = transaction_name(transaction.read_version, transaction.uuid)
    message.reader_feature_flags, message.writer_feature_flags = feature_flags.compute(
        message,
        stable_row_ids=bool(message.reader_feature_flags & feature_flags.STABLE_ROW_IDS),
        indices=indices,
        previous=(message.reader_feature_flags, message.writer_feature_flags),
    )
    section = table_pb2.IndexSection(indices=indices).SerializeToString() if indices else None
    parts = ManifestParts(message, section, dictionary_prefix(table.store, table.base, message, source))
    return publish_first(table, transaction, parts)


def _records_with_base(
    message: table_pb2.Manifest, indices: list[table_pb2.IndexMetadata]
) -> Iterator[table_pb2.DataFile | table_pb2.DeletionFile | table_pb2.IndexMetadata]:
    """Yield all records that refer to a base path, or to the table's own root if they have no base id."""
    for fragment in message.fragments:
        yield from fragment.files
        if fragment.HasField("deletion_file"):
            yield fragment.deletion_file
    yield from indices


def _reference_source(message: table_pb2.Manifest, indices: list[table_pb2.IndexMetadata], operation: tx.Clone) -> None:
    base_id = max((other.id for other in message.base_paths), default=-1) + 1
    for fragment in message.fragments:
        for oneof in ("row_id_sequence", "last_updated_at_version_sequence", "created_at_version_sequence"):
            if (fragment.WhichOneof(oneof) or "").startswith("external"):
                raise UnsupportedFeatureError(
                    f"fragment {fragment.id} stores its row ids or versions in a separate file, which a shallow clone "
                    "cannot refer to; use a deep clone",
                    feature="shallow clones of tables with row ids in files",
                )
    for record in _records_with_base(message, indices):
        if not record.HasField("base_id"):
            record.base_id = base_id
    path = BasePath(base_id, operation.ref_path, name=operation.ref_name, is_dataset_root=True)
    message.base_paths.append(path.to_proto())


def _remove_bases(message: table_pb2.Manifest, indices: list[table_pb2.IndexMetadata]) -> None:
    for record in _records_with_base(message, indices):
        record.ClearField("base_id")
    del message.base_paths[:]
