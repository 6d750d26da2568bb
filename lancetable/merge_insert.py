"""`MergeInsertBuilder`, the configuration and execution of a merge insert."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from lancetable import scope
from lancetable.argument_validation import check_count, check_names, version_to_write
from lancetable.errors import InvalidInputError, UnsupportedFeatureError
from lancetable.operation import Transaction
from lancetable.ops.change.merge import merge_insert
from lancetable.ops.change.merge.clauses import (
    Clauses,
    Counts,
    Matched,
    RepeatedKeys,
    WriteMode,
    check_source,
    key_fields,
)
from lancetable.ops.change.merge.key_matches import key_indexes
from lancetable.ops.change.rewritten_rows import discard_prepared
from lancetable.ops.change.spill import PartitionedRows, memory_budget_bytes
from lancetable.ops.progress_tracker import NO_PROGRESS, Tracker
from lancetable.ops.write.destination import WriteOptions
from lancetable.progress import ProgressLike, tracked
from lancetable.table.fragment_writer import WriteLimits
from lancetable.table.version import TableVersion
from lancetable.tabular_input import Input, foreign_frame, read_input
from lancetable.types import ExecuteResult, ReaderLike

if TYPE_CHECKING:
    from lancetable.dataset import LanceDataset

__all__ = ["MergeInsertBuilder"]


@scope.fill_gaps(scope.MERGE_INSERT)
class MergeInsertBuilder:
    """A merge insert: source rows update, delete or extend the table rows with the same key.

    Created by `LanceDataset.merge_insert`. Each `when_...` method selects the action for one kind of row; rows without
    an action stay unchanged. `execute` runs the merge. A key that contains a null never matches.

    Examples
    --------
    >>> builder = ds.merge_insert("id").when_matched_update_all("source.dep_delay > target.dep_delay")
    >>> builder.when_not_matched_insert_all().execute(pa.table({"id": [4, 5, 9], "dep_delay": [70, 70, 70]}))
    {'num_inserted_rows': 1, 'num_updated_rows': 1, 'num_deleted_rows': 0}
    """

    def __init__(self, dataset: LanceDataset, on: str | Iterable[str] | None = None) -> None:
        schema = dataset.table_version.schema
        names = [on] if isinstance(on, str) else [field.name for field in schema.primary_key()] if on is None else [*on]
        self._dataset = dataset
        self._clauses = Clauses(tuple(field.name for field in key_fields(schema, names)))
        self._conflict_retries = 10
        self._retry_timeout = timedelta(seconds=30)
        self._options = WriteOptions(limits=WriteLimits(keep_arrays=True))

    # ------------------------------------------------------------------------------------------------- actions

    def when_matched_update_all(self, condition: str | None = None) -> MergeInsertBuilder:
        """Update matched rows with all columns of the source; other columns keep their values.

        `condition` is SQL over `source.` and `target.` columns; rows for which it is not true are not updated.

        Raises
        ------
        TypeError
            If `condition` is not a string.
        """
        if condition is not None and not isinstance(condition, str):
            raise TypeError(f"condition must be an SQL string, got {type(condition).__name__}")
        return self._with(matched=Matched.UPDATE, condition=condition)

    def when_matched_delete(self) -> MergeInsertBuilder:
        """Delete matched rows of the table. The source needs only the key columns."""
        return self._with(matched=Matched.DELETE, condition=None)

    def when_matched_fail(self) -> MergeInsertBuilder:
        """Make the merge fail if any row matches."""
        return self._with(matched=Matched.FAIL, condition=None)

    def when_not_matched_insert_all(self) -> MergeInsertBuilder:
        """Insert source rows without a match, with nulls for missing columns."""
        return self._with(insert=True)

    def when_not_matched_by_source_delete(self, expr: str | None = None) -> MergeInsertBuilder:
        """Delete table rows without a match; with `expr`, SQL over their columns, only those for which it is true.

        Raises
        ------
        TypeError
            If `expr` is not a string.
        """
        if expr is not None and not isinstance(expr, str):
            raise TypeError(f"expr must be an SQL string, got {type(expr).__name__}")
        return self._with(delete_unmatched=True, delete_condition=expr)

    def when_source_repeated(self, keep: Literal["fail", "first", "last"]) -> MergeInsertBuilder:
        """Select the source row to use if several have the same key. Not in pylance.

        "first" and "last" apply to updates and inserts. "fail", the default, inserts all of these rows, and raises an
        error if they match a table row.

        Raises
        ------
        InvalidInputError
            If `keep` has another value.
        """
        values = [choice.value for choice in RepeatedKeys]
        if keep not in values:
            raise InvalidInputError(f"keep must be one of {', '.join(values)}, got {keep!r}")
        return self._with(repeated=RepeatedKeys(keep))

    def write_mode(self, mode: Literal["auto", "rewrite_rows", "rewrite_columns"]) -> MergeInsertBuilder:
        """Select how updated rows are written: as whole rows, or only the columns of the source.

        "rewrite_rows" writes whole rows to new fragments. "rewrite_columns" writes only the columns of the source, for
        all rows of the fragments with a match; it is cheaper if a few narrow columns of wide rows change. It supports
        only updates. The source must fit in memory, lack at least one column of the table, have a column besides the
        key, and have no blobs. "auto" is the same as "rewrite_rows".

        Raises
        ------
        InvalidInputError
            If `mode` has another value.
        """
        if mode not in [choice.value for choice in WriteMode]:
            raise InvalidInputError(
                f"Invalid write_mode: {mode}. Expected one of 'auto', 'rewrite_rows', 'rewrite_columns'"
            )
        return self._with(write_mode=WriteMode(mode))

    # -------------------------------------------------------------------------------------------------- execution

    def conflict_retries(self, max_retries: int) -> MergeInsertBuilder:
        """Set the maximum number of retries after a concurrent change of the same rows; 10 by default.

        Raises
        ------
        TypeError, OutOfRangeError
            If `max_retries` is not a count.
        """
        self._conflict_retries = check_count("max_retries", max_retries)
        return self

    def retry_timeout(self, timeout: timedelta) -> MergeInsertBuilder:
        """Set the total duration of retries; 30 seconds by default.

        Raises
        ------
        TypeError
            If `timeout` is not a timedelta.
        """
        if not isinstance(timeout, timedelta):
            raise TypeError(f"timeout must be a timedelta, got {type(timeout).__name__}")
        self._retry_timeout = timeout
        return self

    def use_index(self, use_index: bool) -> MergeInsertBuilder:
        """Enable or disable looking up keys in a scalar index of a key column; the result is the same.

        An index is used if the source has at most one row for each 1,000 rows of the table, or 1,024 rows. Otherwise
        all keys of the table are read.
        """
        return self._with(use_index=bool(use_index))

    def data_storage_version(self, version: str) -> MergeInsertBuilder:
        """Set the format of new data files; the format of the table by default. Raises InvalidInputError, TypeError."""
        return self._writing(file_version=version_to_write(version, None))

    def target_bases(self, bases: list[str]) -> MergeInsertBuilder:
        """Distribute the files of new fragments over registered bases, given by name or path; see `write_dataset`.

        Column files of existing fragments and deletion files are always stored with the table.

        Raises
        ------
        InvalidInputError
            If `bases` is not a list of strings.
        """
        return self._writing(target_bases=check_names("bases", bases))

    def target_all_bases(self, include_primary: bool = True) -> MergeInsertBuilder:
        """Distribute the files of new fragments over all bases and, with `include_primary`, the table."""
        return self._writing(target_all_bases=True, include_primary=bool(include_primary))

    def execute(
        self, data_obj: ReaderLike, *, schema: pa.Schema | None = None, progress: ProgressLike = None
    ) -> ExecuteResult:
        """Merge, commit, and move the dataset to the new version.

        A stream is read once; rows beyond LANCETABLE_MEMORY_BYTES (256 MiB by default) are spilled to temporary files.

        Parameters
        ----------
        data_obj
            The source, any tabular object; see `write_dataset`.
        schema
            Schema to cast the source to.
        progress
            Progress callback, or True for a progress bar; see `lancetable.progress`. It counts the source rows read
            ("source"), then the rows written ("merge_insert"). Not in pylance.

        Returns
        -------
        dict
            `{"num_inserted_rows", "num_updated_rows", "num_deleted_rows"}`.

        Raises
        ------
        InvalidInputError
            If no action is selected.
        SchemaMismatchError
            If the source does not fit the table.
        ColumnNotFoundError
            If a key column is missing.
        InvalidSqlError
            If a condition is invalid.
        InvalidOperationError
            If source rows with one key match the same row, a match is forbidden, or the write mode does not fit.
        RetryableCommitConflictError
            If every attempt lost against a concurrent commit.
        CommitConflictError, CommitStateUnknownError
            If a retry cannot succeed, or the outcome of the commit is unknown.
        """
        with tracked(progress, "source") as tracker:
            with ExitStack() as stack:
                version, source = self._loaded(data_obj, schema, stack, tracker)
                committed, counts = merge_insert.merge_insert(
                    version,
                    self._clauses,
                    source,
                    options=replace(self._options, tracker=tracker),
                    conflict_retries=self._conflict_retries,
                    retry_timeout_s=self._retry_timeout.total_seconds(),
                )
            self._dataset.move_to(committed)
        return result_of(counts)

    def execute_uncommitted(
        self, data_obj: ReaderLike, *, schema: pa.Schema | None = None
    ) -> tuple[Transaction, dict[str, Any]]:
        """Write the files of the merge without committing it.

        Returns the transaction for `LanceDataset.commit`, and the counts that `execute` returns. Raises the errors of
        `execute`, except for commit conflicts.
        """
        with ExitStack() as stack:
            version, source = self._loaded(data_obj, schema, stack)
            prepared, counts = merge_insert.prepare(version, self._clauses, source, self._options)
            version.store.sync(version.base)
        return Transaction.from_format(prepared.transaction), {**result_of(counts)}

    def explain_plan(self, schema: pa.Schema | None = None, verbose: bool = False) -> str:
        """Return a description of the merge. `schema` is the schema of the source, by default that of the table.

        Raises
        ------
        InvalidInputError
            If no action is selected.
        SchemaMismatchError
            If `schema` does not fit the table.
        UnsupportedFeatureError
            If the merge looks up its keys in a BTREE or BITMAP index, as in pylance.
        """
        self._clauses.check()
        exact = [name for name, is_exact in key_indexes(self._dataset.table_version, self._clauses).items() if is_exact]
        if exact:
            raise UnsupportedFeatureError(
                f"a merge that looks up its keys in the index {exact[0]!r} does not support explain_plan; call"
                " analyze_plan, or use_index(False) for the plan without the index",
                feature="explain_plan of a merge with an index",
            )
        return self._plan(schema, verbose=verbose)

    def _plan(self, schema: pa.Schema | None, *, verbose: bool = False) -> str:
        version = self._dataset.table_version
        names = version.schema.names if schema is None else check_source(version.schema, self._clauses, schema).names
        absent = [name for name in version.schema.names if name not in names]
        lines = [self._clauses.explain()]
        if self._clauses.matched is Matched.UPDATE and absent:
            lines.append(f"  LateRead: columns=[{', '.join(absent)}] of the rows that match")
        lines.append(f"  HashJoin: on=[{', '.join(self._clauses.on)}], built from the source")
        num_fragments = len(version.manifest.fragments)
        keys = ", ".join(self._clauses.on)
        lines.append(f"    LanceRead: projection=[{keys}], num_fragments={num_fragments}, zones without keys skipped")
        if found := key_indexes(version, self._clauses):
            lines.append(f"      IndexLookup: the keys of a small source in [{', '.join(found)}]")
        lines.append(f"    Source: columns=[{', '.join(names)}]")
        if verbose:
            lines += [f"      Column: {field.name} type={field.data_type}" for field in version.schema.fields]
        return "".join(line + "\n" for line in lines)

    def analyze_plan(self, data_obj: ReaderLike, *, schema: pa.Schema | None = None) -> str:
        """Run the merge without committing it and return its plan with measurements. Raises the errors of `execute`."""
        start = time.perf_counter()
        with ExitStack() as stack:
            version, source = self._loaded(data_obj, schema, stack)
            prepared, counts = merge_insert.prepare(version, self._clauses, source, self._options)
            elapsed_ms = (time.perf_counter() - start) * 1e3
            new_fragments = prepared.operation.new_fragments
            size_bytes = sum(file.size_bytes or 0 for fragment in new_fragments for file in fragment.files)
            discard_prepared(version, prepared)
            incoming = source.schema
        head = (
            f"Analyze: elapsed={elapsed_ms:.3f}ms, metrics=[bytes_written={size_bytes}, "
            f"num_files_written={len(new_fragments)}, num_inserted_rows={counts.inserted}, "
            f"num_updated_rows={counts.updated}, num_deleted_rows={counts.deleted}]\n"
        )
        plan = self._plan(incoming).splitlines(keepends=True)
        return head + "".join("  " + line for line in plan)

    def _with(self, **changes: Any) -> MergeInsertBuilder:
        self._clauses = replace(self._clauses, **changes)
        return self

    def _writing(self, **changes: Any) -> MergeInsertBuilder:
        self._options = replace(self._options, **changes)
        return self

    def _loaded(
        self, data_obj: ReaderLike, schema: pa.Schema | None, stack: ExitStack, tracker: Tracker = NO_PROGRESS
    ) -> tuple[TableVersion, PartitionedRows]:
        self._clauses.check()
        version = self._dataset.table_version
        incoming: Input = read_input(data_obj, schema)
        stored = check_source(version.schema, self._clauses, incoming.schema)
        source = stack.enter_context(PartitionedRows(stored.to_storage_arrow(), self._clauses.on))
        in_memory = isinstance(data_obj, (pa.Table, pa.RecordBatch)) or foreign_frame(data_obj) is not None
        whole = in_memory or self._clauses.write_mode is WriteMode.COLUMNS
        tracker.begin(total_rows=incoming.num_rows)
        merge_insert.load_source(stored, incoming.batches, source, None if whole else memory_budget_bytes(), tracker)
        return version, source


def result_of(counts: Counts) -> ExecuteResult:
    """Return the counts in the form of `execute`."""
    inserted, updated, deleted = counts.inserted, counts.updated, counts.deleted
    return {"num_inserted_rows": inserted, "num_updated_rows": updated, "num_deleted_rows": deleted}
