"""Writes of rows: `write_fragments`, and the steps that it shares with `lancetable.dataset.write_dataset`.

    write_options      checks the arguments
    open_target        opens the table to write to
    write_table        creates, appends to or overwrites a table
    write_fragments    writes data files without a commit

This module does not import `LanceDataset`, so that `lancetable.fragment` can import it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa

from lancetable import scope, telemetry
from lancetable.argument_validation import (
    DEFAULT_MAX_BYTES_PER_FILE,
    check_mode,
    check_names,
    check_positive,
    uri_string,
    version_to_write,
)
from lancetable.errors import AlreadyExistsError, DatasetNotFoundError, InvalidInputError, InvalidOperationError
from lancetable.format import transaction as tx
from lancetable.format.fragment import Fragment
from lancetable.fragment_metadata import FragmentMetadata
from lancetable.operation import Transaction, to_bases
from lancetable.ops.commit import with_storage_options
from lancetable.ops.write import write
from lancetable.ops.write.destination import Destination, WriteOptions
from lancetable.progress import FragmentWriteProgress, ProgressLike, split_progress, tracked
from lancetable.table.fragment_writer import WriteLimits
from lancetable.table.metadata_cache import TableCache
from lancetable.table.version import TableVersion, open_version
from lancetable.tabular_input import Input, cast_batches, read_input

if TYPE_CHECKING:
    from lancetable.dataset import LanceDataset
    from lancetable.session import Session
    from lancetable.types import CommitLock, DatasetBasePath, ReaderLike, Uri

logger = logging.getLogger(__name__)

# The fields of `WriteLimits` that an argument sets, and the names of these arguments.
_SIZE_ARGUMENTS = {
    "max_rows_per_file": "max_rows_per_file",
    "max_rows_per_group": "max_rows_per_group",
    "max_bytes_per_file": "max_bytes_per_file",
    "data_cache_bytes": "data_cache_bytes",
    "max_page_bytes": "max_page_bytes",
    "blob_pack_bytes": "blob_pack_file_size_threshold",
}


@overload
def write_fragments(
    data: ReaderLike,
    dataset_uri: Uri | LanceDataset | TableVersion,
    schema: pa.Schema | None = ...,
    *,
    return_transaction: Literal[False] = ...,
    **arguments: Any,
) -> list[FragmentMetadata]: ...


@overload
def write_fragments(
    data: ReaderLike,
    dataset_uri: Uri | LanceDataset | TableVersion,
    schema: pa.Schema | None = ...,
    *,
    return_transaction: Literal[True],
    **arguments: Any,
) -> Transaction: ...


def write_fragments(  # type: ignore[misc]  # the overloads only list what depends on return_transaction
    data: ReaderLike,
    dataset_uri: Uri | LanceDataset | TableVersion,
    schema: pa.Schema | None = None,
    *,
    return_transaction: bool = False,
    mode: str = "append",
    max_rows_per_file: int = 1024 * 1024,
    max_rows_per_group: int = 1024,
    max_bytes_per_file: int = DEFAULT_MAX_BYTES_PER_FILE,
    data_cache_bytes: int | None = None,
    max_page_bytes: int | None = None,
    progress: FragmentWriteProgress | ProgressLike = None,
    data_storage_version: str | None = None,
    use_legacy_format: bool | None = None,
    storage_options: dict[str, str] | None = None,
    enable_stable_row_ids: bool = False,
    target_bases: list[str] | None = None,
    target_all_bases: bool | None = None,
    initial_bases: list[DatasetBasePath] | None = None,
    base_store_params: dict[str, dict[str, str]] | None = None,
    external_blob_mode: str = "reference",
    allow_external_blob_outside_bases: bool = False,
    namespace_client: Any = None,
    table_id: list[str] | None = None,
    session: Session | None = None,
) -> list[FragmentMetadata] | Transaction:
    """Write data files without committing them: the distributed part of a write.

    With mode "append" and a table at `dataset_uri`, the data must fit the schema of the table, and the fragments are
    committed with `LanceOperation.Append`. With "create" or "overwrite", or without a table, columns get new field ids,
    and the fragments are committed with `LanceOperation.Overwrite` and the Arrow schema. Stable row ids are assigned at
    commit, regardless of `enable_stable_row_ids`.

    Parameters
    ----------
    data
        Any tabular object.
    dataset_uri
        The table, or the address of a new one.
    schema
        Schema to cast the data to.
    return_transaction
        Return a `Transaction` for `LanceDataset.commit` instead of the fragments.
    mode, max_rows_per_file, max_rows_per_group, max_bytes_per_file, data_cache_bytes, max_page_bytes
        As in `write_dataset`.
    progress, data_storage_version, use_legacy_format, storage_options, session
        As in `write_dataset`.
    target_bases, target_all_bases, initial_bases, external_blob_mode, allow_external_blob_outside_bases
        As in `write_dataset`.
    enable_stable_row_ids
        Accepted for compatibility, without effect.
    base_store_params, namespace_client, table_id
        Not supported; raise UnsupportedFeatureError if given.

    Returns
    -------
    list[FragmentMetadata] or Transaction
        The uncommitted fragments.

    Raises
    ------
    AlreadyExistsError
        With mode "create", if the table exists.
    SchemaMismatchError, InvalidSchemaError, InvalidInputError, UnsupportedFeatureError, TypeError, StoreError
        As in `write_dataset`.

    Examples
    --------
    >>> from lancetable import LanceDataset, LanceOperation
    >>> from lancetable.fragment import write_fragments
    >>> fragments = write_fragments(pa.table({"id": [1, 2]}), "new.lance")
    >>> schema = pa.schema({"id": pa.int64()})
    >>> LanceDataset.commit("new.lance", LanceOperation.Overwrite(schema, fragments)).count_rows()
    2
    """
    mode = check_mode(mode)
    options = write_options(locals(), keep_arrays=isinstance(data, pa.Table))
    target = open_target(dataset_uri, storage_options, cache=None if session is None else session.cache)
    if mode == "create" and isinstance(target, TableVersion):
        raise AlreadyExistsError(f"Dataset already exists: {target.uri}", path=target.uri)
    source = read_input(data, schema)
    with tracked_write(options, progress, source) as options:
        written = write.write_fragments(
            target, source.schema, source.batches, options, mode=mode, storage_options=storage_options
        )
    if return_transaction:
        return Transaction.from_format(written)
    assert isinstance(written.operation, (tx.Append, tx.Overwrite))
    return [FragmentMetadata.from_format(fragment) for fragment in written.operation.fragments]


def write_options(arguments: Mapping[str, Any], *, keep_arrays: bool) -> WriteOptions:
    """Return the options that all writes share.

    Parameters
    ----------
    arguments
        The arguments of `write_dataset` or `write_fragments` by name: their `locals()`.
    keep_arrays
        True if the memory of the batches does not change during the write.

    Raises
    ------
    InvalidInputError, InvalidOperationError, OutOfRangeError, TypeError
        If an argument is invalid.
    UnsupportedFeatureError
        If an argument, such as `namespace_client`, is not supported.
    """
    scope.reject("catalog lookup", namespace_client=arguments["namespace_client"], table_id=arguments["table_id"])
    scope.reject("several stores for one table", base_store_params=arguments["base_store_params"])
    _check_external_blobs(arguments["external_blob_mode"], arguments["allow_external_blob_outside_bases"])
    sizes: dict[str, Any] = {
        field: check_positive(name, arguments[name])
        for field, name in _SIZE_ARGUMENTS.items()
        if arguments.get(name) is not None
    }
    progress, _ = split_progress(arguments["progress"])
    return WriteOptions(
        limits=WriteLimits(**sizes, keep_arrays=keep_arrays),
        file_version=version_to_write(arguments["data_storage_version"], arguments["use_legacy_format"]),
        progress=None if progress is None else _file_callback(progress),
        initial_bases=to_bases(arguments["initial_bases"] or ()),
        target_bases=check_names("target_bases", arguments["target_bases"]),
        target_all_bases=bool(arguments["target_all_bases"]),
    )


def _check_external_blobs(mode: str, outside_bases: bool) -> None:
    """Check the arguments for external blobs. Data with external blobs is rejected later.

    Raises
    ------
    InvalidInputError
        If the mode is unknown.
    InvalidOperationError
        If the other argument does not apply to the mode.
    """
    if mode not in ("reference", "ingest"):
        raise InvalidInputError(f"Invalid external blob mode: {mode}")
    if mode == "ingest" and outside_bases:
        raise InvalidOperationError("allow_external_blob_outside_bases only applies to external blob mode reference")


def _file_callback(progress: FragmentWriteProgress) -> Callable[[str, Fragment], None]:
    """Return a function that forwards the events "begin" and "complete" of data files to a `FragmentWriteProgress`."""
    return lambda event, fragment: getattr(progress, event)(FragmentMetadata.from_format(fragment))


@contextmanager
def tracked_write(
    options: WriteOptions, progress: FragmentWriteProgress | ProgressLike, source: Input
) -> Iterator[WriteOptions]:
    """Yield the options of a write with a tracker, which reports to the `progress` argument of the write."""
    _, progress_of_rows = split_progress(progress)
    with tracked(progress_of_rows, "write") as tracker:
        tracker.begin(total_rows=source.num_rows)
        yield replace(options, tracker=tracker)


def open_target(
    uri: Uri | LanceDataset | TableVersion,
    storage_options: Mapping[str, str] | None,
    commit_lock: CommitLock | None = None,
    cache: TableCache | None = None,
) -> TableVersion | str:
    """Return the version of a dataset, the newest version at a URI, or the URI if no table exists there."""
    version = getattr(uri, "table_version", uri)
    if isinstance(version, TableVersion):
        return with_storage_options(version, storage_options, commit_lock)
    address = uri_string(uri)
    try:
        return open_version(address, storage_options=storage_options, commit_lock=commit_lock, cache=cache)
    except DatasetNotFoundError:
        return address


def write_table(
    target: TableVersion | str,
    source: Input,
    options: WriteOptions,
    mode: str,
    schema_mode: str | None,
    config: Mapping[str, str] | None,
    **creation: Any,
) -> TableVersion:
    """Write rows to a table and return the new version.

    Parameters
    ----------
    target
        The table, or the address of a new one.
    source
        The rows.
    options
        Options of the write.
    mode, schema_mode
        The checked arguments of `write_dataset`.
    config
        Config of a new table.
    **creation
        Other arguments of `lancetable.ops.write.write.create`.
    """
    if isinstance(target, str):
        if mode == "append":
            warnings.warn(f"no table exists at {target}; creating it", stacklevel=3)
        return write.create(target, source.schema, source.batches, options, config=config, **creation)
    _warn_of_unused(target, options, config)
    if mode == "overwrite":
        return write.overwrite(target, source.schema, source.batches, options)
    if schema_mode is None:
        return write.append(target, source.schema, source.batches, options)
    Destination.of_table(target, options)  # raises an error before the schema changes
    from lancetable.ops.write import schema_merge  # imported here, because it imports all of expr

    target, merged = schema_merge.merge_schema(target, source.schema)
    return write.append(target, merged, cast_batches(source.batches, merged), options)


def _warn_of_unused(table: TableVersion, options: WriteOptions, config: Mapping[str, str] | None) -> None:
    """Log a warning for arguments that only apply to new tables, if this table differs from them."""
    if options.stable_row_ids and not table.manifest.has_stable_row_ids:
        logger.warning(
            "%s: enable_stable_row_ids has no effect on an existing table without stable row ids",
            table.uri,
            extra=telemetry.fields(
                "write.option_ignored", table.uri, version=table.version, option="enable_stable_row_ids"
            ),
        )
    differs = [key for key, value in (config or {}).items() if table.manifest.config.get(key) != value]
    if differs:
        logger.warning(
            "%s: auto_cleanup_options have no effect on an existing table: %s are unchanged; use"
            " optimize.enable_auto_cleanup",
            table.uri,
            ", ".join(sorted(differs)),
            extra=telemetry.fields(
                "write.option_ignored", table.uri, version=table.version, option="auto_cleanup_options"
            ),
        )
