"""`MergeInsertBuilder`: what `LanceDataset.merge_insert` returns, to say what a merge does and to run it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from lancetable import scope
from lancetable.arguments import check_count, check_names, version_to_write
from lancetable.errors import InvalidInputError
from lancetable.inputs import Input, foreign_frame, read_input
from lancetable.operation import Transaction
from lancetable.ops import merge_insert
from lancetable.ops.merge_clauses import Clauses, Counts, Matched, Repeated, WriteMode, check_source, key_fields
from lancetable.ops.moved_rows import discard_prepared
from lancetable.ops.spill import Divided, memory_budget_bytes
from lancetable.ops.tracker import Tracker
from lancetable.ops.write import WriteOptions
from lancetable.progress import ProgressLike, tracked
from lancetable.table.data_files import WriteLimits
from lancetable.table.version import TableVersion
from lancetable.types import ExecuteResult, ReaderLike

if TYPE_CHECKING:
    from lancetable.dataset import LanceDataset

__all__ = ["MergeInsertBuilder"]


@scope.fill_gaps(scope.MERGE_INSERT)
class MergeInsertBuilder:
    """Rows of a source update, delete or join those of a table that have the same key.

    Each `when_...` chooses what becomes of one kind of rows; what is not chosen stays as it is. `execute` runs it.
    A key that holds a null matches nothing.

    Examples
    --------
    >>> (
    ...     ds.merge_insert("id")
    ...     .when_matched_update_all()
    ...     .when_not_matched_insert_all()
    ...     .execute(new_rows)
    ... )  # doctest: +SKIP
    {'num_inserted_rows': 2, 'num_updated_rows': 10, 'num_deleted_rows': 0}
    """

    def __init__(self, dataset: LanceDataset, on: str | Iterable[str] | None = None) -> None:
        schema = dataset.table_version.schema
        names = [on] if isinstance(on, str) else [field.name for field in schema.primary_key()] if on is None else [*on]
        self._dataset = dataset
        self._clauses = Clauses(tuple(field.name for field in key_fields(schema, names)))
        self._conflict_retries = 10
        self._retry_timeout = timedelta(seconds=30)
        self._version: str | None = None
        self._target_bases: tuple[str, ...] = ()
        self._target_all_bases, self._include_primary = False, True

    # ------------------------------------------------------------------------------------------------- what is done

    def when_matched_update_all(self, condition: str | None = None) -> MergeInsertBuilder:
        """Rows that match get the values of the source: of all its columns, the others keep theirs.

        `condition` is SQL over `source.` and `target.` columns; where it is not true, rows stay as they are.
        """
        if condition is not None and not isinstance(condition, str):
            raise TypeError(f"condition must be SQL text, got {type(condition).__name__}")
        return self._with(matched=Matched.UPDATE, condition=condition)

    def when_matched_delete(self) -> MergeInsertBuilder:
        """Rows of the table that match are deleted. The source needs no columns but the key."""
        return self._with(matched=Matched.DELETE, condition=None)

    def when_matched_fail(self) -> MergeInsertBuilder:
        """The merge fails if any row matches."""
        return self._with(matched=Matched.FAIL, condition=None)

    def when_not_matched_insert_all(self) -> MergeInsertBuilder:
        """Rows of the source without a match are inserted, with nulls for columns that it lacks."""
        return self._with(insert=True)

    def when_not_matched_by_source_delete(self, expr: str | None = None) -> MergeInsertBuilder:
        """Rows of the table without a match are deleted; with `expr`, SQL over their columns, where it is true."""
        if expr is not None and not isinstance(expr, str):
            raise TypeError(f"expr must be SQL text, got {type(expr).__name__}")
        return self._with(delete_unmatched=True, delete_condition=expr)

    def when_source_repeated(self, keep: Literal["fail", "first", "last"]) -> MergeInsertBuilder:
        """Which of several source rows with one key counts, also of those that are inserted.

        "fail", the default, inserts all of them, and raises where they match the same row of the table. pylance has no
        such choice.
        """
        known = {each.value: each for each in Repeated}
        if keep not in known:
            raise InvalidInputError(f"keep must be one of {', '.join(known)}, not {keep!r}")
        return self._with(repeated=known[keep])

    def write_mode(self, mode: Literal["auto", "rewrite_rows", "rewrite_columns"]) -> MergeInsertBuilder:
        """How updated rows are written: whole, into new fragments, or only the columns of the source, for all rows of
        the fragments that hold a match.

        "rewrite_columns" takes less where a few narrow columns of wide rows change. It can only update, from a source
        that lacks a column of the table, has one besides the key and no blobs, and that fits in memory. "auto" writes
        rows.
        """
        known = {each.value: each for each in WriteMode}
        if mode not in known:
            raise InvalidInputError(
                f"Invalid write_mode: {mode}. Expected one of 'auto', 'rewrite_rows', 'rewrite_columns'"
            )
        return self._with(write_mode=known[mode])

    # -------------------------------------------------------------------------------------------------- how it is run

    def conflict_retries(self, max_retries: int) -> MergeInsertBuilder:
        """How often to run again on a newer version when another commit touched the same rows; 10 by default."""
        self._conflict_retries = check_count("max_retries", max_retries)
        return self

    def retry_timeout(self, timeout: timedelta) -> MergeInsertBuilder:
        """How long to try; 30 seconds by default."""
        if not isinstance(timeout, timedelta):
            raise TypeError(f"timeout must be a timedelta, got {type(timeout).__name__}")
        self._retry_timeout = timeout
        return self

    def use_index(self, use_index: bool) -> MergeInsertBuilder:
        """Accepted for compatibility, without effect: secondary indexes are not read."""
        return self

    def data_storage_version(self, version: str) -> MergeInsertBuilder:
        """Format of new data files; that of the table by default."""
        version_to_write(version, None)
        self._version = version
        return self

    def target_bases(self, bases: list[str]) -> MergeInsertBuilder:
        """Names or paths of registered bases that take the files of new fragments in turn; see `write_dataset`.

        Columns written for fragments that are there, and deletion files, lie with the table as always.
        """
        self._target_bases = check_names("bases", bases)
        return self

    def target_all_bases(self, include_primary: bool = True) -> MergeInsertBuilder:
        """All bases take the files of new fragments in turn, and with `include_primary` the table as well."""
        self._target_all_bases, self._include_primary = True, bool(include_primary)
        return self

    def execute(
        self, data_obj: ReaderLike, *, schema: pa.Schema | None = None, progress: ProgressLike = None
    ) -> ExecuteResult:
        """Merge, commit, and move the dataset to the new version.

        `data_obj` is anything tabular, see `write_dataset`; a stream is read once, and what does not fit into
        LANCETABLE_MEMORY_BYTES (256 MiB by default) waits in files that are removed at the end. `progress` is told how
        far it is, see `lancetable.progress`: first of the rows of the source read ("source"), then of those written
        ("merge_insert").

        Returns `{"num_inserted_rows", "num_updated_rows", "num_deleted_rows"}`. Raises InvalidInputError without an
        action, SchemaMismatchError for a source that does not fit the table, ColumnNotFoundError for a missing key,
        InvalidSqlError for a condition, InvalidOperationError for source rows with one key that match the same row;
        RetryableCommitConflictError when every attempt lost, CommitConflictError, CommitStateUnknownError.
        """
        with tracked(progress, "source") as tracker:
            with ExitStack() as stack:
                version, source = self._loaded(data_obj, schema, stack, tracker)
                made, counts = merge_insert.merge_insert(
                    version,
                    self._clauses,
                    source,
                    file_version=version_to_write(self._version, None),
                    options=self._options(tracker),
                    conflict_retries=self._conflict_retries,
                    retry_timeout_s=self._retry_timeout.total_seconds(),
                )
            self._dataset.move_to(made)
        return result_of(counts)

    def execute_uncommitted(
        self, data_obj: ReaderLike, *, schema: pa.Schema | None = None
    ) -> tuple[Transaction, dict[str, Any]]:
        """Write the files of the merge without committing it; returns the transaction for `LanceDataset.commit`, and
        what `execute` returns. Errors as there, but for conflicts."""
        with ExitStack() as stack:
            version, source = self._loaded(data_obj, schema, stack)
            prepared, counts = merge_insert.prepare(
                version,
                self._clauses,
                source,
                file_version=version_to_write(self._version, None),
                options=self._options(),
            )
            version.store.sync(version.base)
        return Transaction.from_format(prepared.transaction), {**result_of(counts)}

    def explain_plan(self, schema: pa.Schema | None = None, verbose: bool = False) -> str:
        """What would be done, as text. `schema` is that of the source, without it that of the table."""
        self._clauses.check()
        version = self._dataset.table_version
        names = version.schema.names if schema is None else check_source(version.schema, self._clauses, schema).names
        absent = [name for name in version.schema.names if name not in names]
        lines = [self._clauses.explain()]
        if self._clauses.matched is Matched.UPDATE and absent:
            lines.append(f"  LateRead: columns=[{', '.join(absent)}] of the rows that match")
        lines.append(f"  HashJoin: on=[{', '.join(self._clauses.on)}], built from the source")
        fragments = len(version.manifest.fragments)
        keys = ", ".join(self._clauses.on)
        lines.append(f"    LanceRead: projection=[{keys}], num_fragments={fragments}, zones without keys skipped")
        lines.append(f"    Source: columns=[{', '.join(names)}]")
        if verbose:
            lines += [f"      Column: {field.name} type={field.data_type}" for field in version.schema.fields]
        return "".join(line + "\n" for line in lines)

    def analyze_plan(self, data_obj: ReaderLike, *, schema: pa.Schema | None = None) -> str:
        """Run the merge without committing it, and show what it took. Errors as in `execute`."""
        start = time.perf_counter()
        with ExitStack() as stack:
            version, source = self._loaded(data_obj, schema, stack)
            prepared, counts = merge_insert.prepare(version, self._clauses, source)
            elapsed_ms = (time.perf_counter() - start) * 1e3
            num_files = len(prepared.operation.new_fragments)
            size_bytes = sum(file.size_bytes or 0 for each in prepared.operation.new_fragments for file in each.files)
            discard_prepared(version, prepared)
            incoming = source.schema
        head = (
            f"Analyze: elapsed={elapsed_ms:.3f}ms, metrics=[bytes_written={size_bytes}, num_files_written={num_files}, "
            f"num_inserted_rows={counts.inserted}, num_updated_rows={counts.updated}, "
            f"num_deleted_rows={counts.deleted}]\n"
        )
        plan = self.explain_plan(incoming).splitlines(keepends=True)
        return head + "".join("  " + line for line in plan)

    def _options(self, tracker: Tracker | None = None) -> WriteOptions:
        return WriteOptions(
            limits=WriteLimits(keep_arrays=True),
            target_bases=self._target_bases,
            target_all_bases=self._target_all_bases,
            include_primary=self._include_primary,
            tracker=tracker,
        )

    def _with(self, **changes: Any) -> MergeInsertBuilder:
        self._clauses = replace(self._clauses, **changes)
        return self

    def _loaded(
        self, data_obj: ReaderLike, schema: pa.Schema | None, stack: ExitStack, tracker: Tracker | None = None
    ) -> tuple[TableVersion, Divided]:
        self._clauses.check()
        version = self._dataset.table_version
        incoming: Input = read_input(data_obj, schema)
        stored = check_source(version.schema, self._clauses, incoming.schema)
        source = stack.enter_context(Divided(stored.to_storage_arrow(), self._clauses.on))
        in_memory = isinstance(data_obj, (pa.Table, pa.RecordBatch)) or foreign_frame(data_obj) is not None
        whole = in_memory or self._clauses.write_mode is WriteMode.COLUMNS
        if tracker is not None:
            tracker.begin(total_rows=incoming.num_rows)
        merge_insert.load_source(stored, incoming.batches, source, None if whole else memory_budget_bytes(), tracker)
        return version, source


def result_of(counts: Counts) -> ExecuteResult:
    """The counts as users see them."""
    return ExecuteResult(
        num_inserted_rows=counts.inserted, num_updated_rows=counts.updated, num_deleted_rows=counts.deleted
    )
