"""Scans: selection, order and output form of rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from lancetable import expr, ops, scope, telemetry
from lancetable.argument_validation import check_count, check_filter
from lancetable.errors import InvalidInputError, InvalidOperationError
from lancetable.lazy import lazy_property
from lancetable.ops.read.matching_rows import count_plan
from lancetable.ops.read.order_by import ColumnOrdering
from lancetable.ops.read.projection import Output, nested_value
from lancetable.ops.read.scan import execute_scan, scan_table
from lancetable.ops.read.scan_execution import ScanStatistics
from lancetable.ops.read.scan_plan import ScanOptions, ScanPlan, plan_scan, resolve_filter
from lancetable.progress import ProgressLike, report_of, tracked

if TYPE_CHECKING:
    import pandas as pd

    from lancetable.dataset import LanceDataset
    from lancetable.format.schema import Field
    from lancetable.fragment import LanceFragment
    from lancetable.ops.read.nearest import NearestPlan
    from lancetable.table.version import TableVersion
    from lancetable.types import Columns, Filter

AnyPlan: TypeAlias = "ScanPlan | NearestPlan"

__all__ = ["ColumnOrdering", "LanceScanner", "ScanStatistics", "ScannerBuilder", "scan_arguments"]

DEFAULT_BATCH_SIZE = "LANCE_DEFAULT_BATCH_SIZE"
BLOB_HANDLING = ("all_binary", "blobs_descriptions", "all_descriptions")
TABLE_BATCH_ROWS = 128 * 1024
BLOB_MODES = ("lazy", "bytes", "descriptions")


@scope.fill_gaps(scope.SCANNER)
class LanceScanner(pads.Scanner):  # type: ignore[misc]  # pyarrow comes without types
    """A scan that runs each time one of its read methods is called.

    Created by `LanceDataset.scanner` or `ScannerBuilder.to_scanner`. Names and types in `columns`, `filter` and
    `order_by` are checked when the scan is first planned, not when the scanner is created.
    """

    def __init__(
        self,
        scanner: ScanOptions,
        dataset: LanceDataset,
        snapshot: TableVersion | None = None,
        progress: ProgressLike = None,
    ) -> None:
        self._options = scanner
        self._dataset = dataset
        self._progress = progress or None  # False is equivalent to None
        self._version = dataset.table_version if snapshot is None else snapshot

    @lazy_property
    def _plan(self) -> AnyPlan:
        return plan_of(self._version, self._options)

    def __repr__(self) -> str:
        values = {field.name: getattr(self._options, field.name) for field in fields(self._options)}
        options = [f"{name}={value!r}" for name, value in values.items() if value is not None and value is not False]
        return f"LanceScanner({self._version.uri!r}, version={self._version.version}, {', '.join(options)})"

    def to_table(self) -> pa.Table:
        """Read all rows into an Arrow table.

        Raises
        ------
        InvalidSqlError, ColumnNotFoundError, InvalidInputError
            If the scan cannot be planned.
        CorruptFileError, NotFoundError, StoreError
            If a file cannot be read.
        """
        return self._table(self._plan)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Stream the rows with bounded memory. Raises the errors of `to_table`, planning errors at the call."""
        return self._batches(self._plan)

    def to_reader(self) -> pa.RecordBatchReader:
        """Stream the rows through an Arrow reader. Raises the errors of `to_table`."""
        plan = self._plan
        return pa.RecordBatchReader.from_batches(plan.output_schema, self._batches(plan))

    def _table(self, plan: AnyPlan) -> pa.Table:
        if isinstance(plan, ScanPlan):
            if self._progress is None:
                return scan_table(self._version, plan)
            # Progress needs a streamed scan. Large batches avoid many small chunks in the table.
            plan = replace(plan, batch_rows=max(plan.batch_rows, TABLE_BATCH_ROWS), strict_batch_size=False)
        elif self._progress is None:
            return ops.nearest.nearest_table(self._version, plan)
        return pa.Table.from_batches(self._batches(plan), plan.output_schema)

    def _batches(self, plan: AnyPlan) -> Iterator[pa.RecordBatch]:
        if isinstance(plan, ScanPlan):
            batches = execute_scan(self._version, plan)
        else:
            batches = ops.nearest.nearest_batches(self._version, plan)
        return batches if report_of(self._progress) is None else self._with_progress(plan, batches)

    def _with_progress(self, plan: AnyPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with tracked(self._progress, "scan") as tracker:
            total_rows = None
            if isinstance(plan, ScanPlan) and plan.predicate is None:
                total_rows = count_plan(self._version, replace(plan, stats_callback=None))
            tracker.begin(total_rows=total_rows)
            yield from tracker.counted(batches, with_bytes=True)

    def to_pandas(self, *, blob_mode: str = "lazy", **kwargs: Any) -> pd.DataFrame:
        """Read all rows into a pandas DataFrame; `kwargs` are passed to `pyarrow.Table.to_pandas`.

        `blob_mode` selects the values of blob columns: "lazy" for a `BlobFile` per value, "bytes" for the bytes, and
        "descriptions" for the form selected by `blob_handling`. Null blobs and, with "lazy", blobs of deleted rows are
        None.

        Raises
        ------
        InvalidInputError
            If `blob_mode` has another value.
        """
        if blob_mode not in BLOB_MODES:
            raise InvalidInputError("blob_mode must be one of: 'lazy', 'bytes', 'descriptions'")
        scanner = self
        has_blobs = any(field.is_blob or field.is_blob_v2 for field in self._version.schema.walk())
        if blob_mode != "descriptions" and has_blobs:
            if blob_mode == "lazy":
                return self._lazy_frame(kwargs)
            options = replace(self._options, blob_handling="all_binary")
            scanner = LanceScanner(options, self._dataset, self._version, self._progress)
        frame: pd.DataFrame = scanner.to_table().to_pandas(**kwargs)
        return frame

    def _lazy_frame(self, kwargs: dict[str, Any]) -> pd.DataFrame:
        options = replace(self._options, blob_handling=None)
        names = plan_of(self._version, options).output_schema.names
        plan = plan_of(self._version, replace(options, with_row_address=True))
        table = self._table(plan)
        addresses = table.column("_rowaddr")
        result = plan if isinstance(plan, ScanPlan) else plan.result
        columns = {
            output.field.name: lazy_column(self._version, result, output, table.column(output.field.name), addresses)
            for output in result.projection.outputs
        }
        lazy = {name: values for name, values in columns.items() if values is not None}
        return frame_with(table.select(names), lazy, kwargs)

    def scan_batches(self) -> Iterator[pads.TaggedRecordBatch]:
        """Stream the batches, each with its fragment.

        Raises
        ------
        InvalidOperationError
            If the scan has `order_by` or `nearest`.
        """
        if self._options.order_by or self._options.nearest:
            raise InvalidOperationError("scan_batches() reads fragment by fragment and cannot sort; use to_batches()")
        wanted = self._options.fragments
        skipped = self._options.offset or 0
        left = self._options.limit
        for fragment in self._dataset.checkout_version(self._version.version).get_fragments():
            if left == 0:
                return
            if wanted is not None and fragment.fragment_id not in wanted:
                continue
            options = replace(self._options, fragments=[fragment.fragment_id], offset=None, limit=None)
            if left is not None:
                options = replace(options, limit=skipped + left)
            for whole in execute_scan(self._version, plan_scan(self._version, options)):
                batch = whole.slice(skipped, left)
                skipped -= min(skipped, whole.num_rows)
                if left is not None:
                    left -= batch.num_rows
                if batch.num_rows:
                    yield pads.TaggedRecordBatch(batch, fragment)

    def head(self, num_rows: int) -> pa.Table:
        """Return the first `num_rows` rows. Raises the errors of `to_table`."""
        limit = check_count("num_rows", num_rows)
        if self._options.limit is not None:
            limit = min(limit, self._options.limit)
        plan = self._plan
        if not isinstance(plan, ScanPlan):
            return self._table(replace(plan, result=replace(plan.result, limit=limit)))
        return self._table(plan_scan(self._version, replace(self._options, limit=limit)))

    def count_rows(self) -> int:
        """Return the number of rows that the scan yields, reading only what filter and search need."""
        plan = self._plan
        if isinstance(plan, ScanPlan):
            return count_plan(self._version, plan)
        return ops.nearest.count_nearest(self._version, plan)

    def explain_plan(self, verbose: bool = False) -> str:
        """Return the plan as a string, including the effect of statistics and the use of indexes. Reads no data.

        `verbose` adds the columns.

        Examples
        --------
        >>> print(ds.scanner(columns=["id"], filter="distance > 1000").explain_plan())
        Project: id
          LateRead: columns=[id] of the rows that pass the filter
            LanceRead: uri=..., projection=[distance], num_fragments=2, ..., full_filter=distance > 1000, ...
              Statistics: skip 0 of 2 fragments, 0 of 8 rows, about 0 of ... bytes
        <BLANKLINE>
        """
        plan = self._plan
        if isinstance(plan, ScanPlan):
            return ops.explain.explain_plan(self._version, plan, verbose=verbose)
        return ops.nearest.explain_nearest(self._version, plan, verbose=verbose)

    def analyze_plan(self, count_rows: bool = False) -> str:
        """Run the scan and return its plan with measured rows, bytes, requests and time."""
        plan = self._plan
        if isinstance(plan, ScanPlan):
            return ops.explain.analyze_plan(self._version, plan)
        return ops.nearest.analyze_nearest(self._version, plan)

    @property
    def projected_schema(self) -> pa.Schema:
        """The schema of the rows that the scan yields."""
        return self._plan.output_schema

    @property
    def dataset_schema(self) -> pa.Schema:
        """The schema of the table."""
        return self._version.schema.to_arrow()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the rows as an Arrow C stream."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a LanceScanner cannot be pickled; pickle its dataset and create the scanner from it")


@scope.fill_gaps(scope.SCANNER_BUILDER)
class ScannerBuilder:
    """Builder of a scan. Every method returns the builder; `to_scanner` returns the scan.

    Examples
    --------
    >>> from lancetable.scanner import ScannerBuilder
    >>> ScannerBuilder(ds).columns(["id"]).filter("id > 3").limit(2).to_scanner().to_table().to_pydict()
    {'id': [4, 5]}
    """

    def __init__(self, ds: LanceDataset) -> None:
        self._dataset = ds
        self._values: dict[str, Any] = {}
        self._progress: ProgressLike = None
        self.apply_defaults(ds.default_scan_options)

    def apply_defaults(self, default_opts: dict[str, Any]) -> ScannerBuilder:
        """Call the method of each key with its value.

        Raises
        ------
        InvalidInputError
            If a key is unknown.
        TypeError
            If `nearest` is not a dict.
        """
        for name, value in (default_opts or {}).items():
            setter = SETTERS.get(name)
            if setter is None:
                raise InvalidInputError(f"Unknown option {name}")
            if setter in UNSUPPORTED:
                scope.raise_unsupported(UNSUPPORTED[setter], name=f"argument {name}")
            if name != "nearest":
                getattr(self, setter)(value)
            elif isinstance(value, Mapping):
                self.nearest(**value)
            else:
                raise TypeError(f"nearest must be a dict with the arguments of a search, got {type(value).__name__}")
        return self

    def columns(self, cols: Columns | None = None) -> ScannerBuilder:
        """Select columns by name (dotted paths for nested fields) or as `{name: SQL expression}`; None selects all."""
        return self._set("columns", list(cols) if isinstance(cols, (tuple, set)) else cols)

    def filter(self, filter: Filter | None) -> ScannerBuilder:
        """Set a predicate, as SQL or as a pyarrow expression, which is checked when the scan is planned.

        Raises
        ------
        TypeError
            If `filter` has another type.
        UnsupportedFeatureError
            If `filter` is a search query.
        """
        if isinstance(filter, dict) or type(filter).__name__ in ("FullTextQuery", "VectorSearchQuery", "PhraseQuery"):
            scope.raise_unsupported("search queries", name="argument filter")
        check_filter("filter", filter)
        return self._set("filter", filter)

    def limit(self, n: int | None = None) -> ScannerBuilder:
        """Limit the result to `n` rows, after filter and order. Raises TypeError, OutOfRangeError for other values."""
        return self._set("limit", None if n is None else check_count("Limit", n))

    def offset(self, n: int | None = None) -> ScannerBuilder:
        """Skip the first `n` rows, after filter and order. Raises TypeError or OutOfRangeError for another value."""
        return self._set("offset", None if n is None else check_count("Offset", n))

    def order_by(self, orderings: list[ColumnOrdering | str] | None) -> ScannerBuilder:
        """Sort by columns, the most significant one first; a name sorts ascending with nulls last."""
        return self._set("order_by", orderings)

    def batch_size(self, batch_size: int | None) -> ScannerBuilder:
        """Set the maximum number of rows per batch."""
        return self._count("batch_size", batch_size)

    def batch_size_bytes(self, batch_size_bytes: int | None) -> ScannerBuilder:
        """Set the approximate size of a batch in bytes."""
        return self._count("batch_size_bytes", batch_size_bytes)

    def batch_readahead(self, nbatches: int | None = None) -> ScannerBuilder:
        """Check the argument and ignore it; accepted for compatibility."""
        return self._count("batch_readahead", nbatches)

    def fragment_readahead(self, nfragments: int | None = None) -> ScannerBuilder:
        """Check the argument and ignore it; accepted for compatibility."""
        return self._count("fragment_readahead", nfragments)

    def io_buffer_size(self, io_buffer_size: int | None) -> ScannerBuilder:
        """Check the argument and ignore it; accepted for compatibility."""
        return self._count("io_buffer_size", io_buffer_size)

    def scan_in_order(self, scan_in_order: bool | None = True) -> ScannerBuilder:
        """Do nothing; accepted for compatibility, because rows are always in table order."""
        return self._set("scan_in_order", scan_in_order)

    def strict_batch_size(self, strict_batch_size: bool | None = False) -> ScannerBuilder:
        """Make all batches except the last one exactly `batch_size` rows, copying rows where needed."""
        return self._set("strict_batch_size", strict_batch_size)

    def with_fragments(self, fragments: Iterable[LanceFragment] | None) -> ScannerBuilder:
        """Scan only these fragments, as they are in the scanned version.

        Raises
        ------
        TypeError
            If an element is not a LanceFragment.
        InvalidInputError
            If a fragment belongs to another table.
        """
        if fragments is None:
            return self._set("fragments", None)
        fragments = list(fragments)
        for fragment in fragments:
            if not isinstance(fragment, pads.Fragment) or not hasattr(fragment, "fragment_id"):
                raise TypeError(f"fragments must be an iterable of LanceFragment, got {type(fragment)} in it")
            owner, version = getattr(fragment, "_version", None), self._dataset.table_version
            if owner is not None and owner.store.key(owner.base) != version.store.key(version.base):
                raise InvalidInputError(
                    f"fragment {fragment.fragment_id} belongs to {owner.uri}, not to {version.uri}; take fragments from"
                    " get_fragments of the dataset that is scanned"
                )
        return self._set("fragments", [fragment.fragment_id for fragment in fragments])

    def with_row_id(self, with_row_id: bool | None = True) -> ScannerBuilder:
        """Add the column `_rowid` (uint64)."""
        return self._set("with_row_id", with_row_id)

    def with_row_address(self, with_row_address: bool | None = True) -> ScannerBuilder:
        """Add the column `_rowaddr` (uint64): fragment id in the upper, row offset in the lower 32 bits."""
        return self._set("with_row_address", with_row_address)

    def include_deleted_rows(self, flag: bool | None) -> ScannerBuilder:
        """Also yield deleted rows, with a null `_rowid`; requires the column `_rowid`."""
        return self._set("include_deleted_rows", flag)

    def late_materialization(self, late_materialization: bool | list[str] | None) -> ScannerBuilder:
        """Set the columns to read only for rows that match the filter: True for all others, False, or a list."""
        return self._set("late_materialization", late_materialization)

    def blob_handling(self, blob_handling: str | None) -> ScannerBuilder:
        """Set the form of blob columns: "blobs_descriptions" (default), "all_descriptions" or "all_binary".

        Raises
        ------
        InvalidInputError
            If `blob_handling` has another value.
        """
        if blob_handling is not None and blob_handling not in BLOB_HANDLING:
            raise InvalidInputError(f"blob_handling must be one of {list(BLOB_HANDLING)}, got {blob_handling!r}")
        return self._set("blob_handling", blob_handling)

    def use_stats(self, use_stats: bool | None = True) -> ScannerBuilder:
        """Enable or disable pruning by the statistics in data files; the result is the same."""
        return self._set("use_stats", use_stats)

    def scan_stats_callback(self, callback: Callable[[Any], None] | None) -> ScannerBuilder:
        """Set a callback that is called once with a `ScanStatistics` at the end of the scan.

        Raises
        ------
        InvalidInputError
            If it is not a function.
        """
        if callback is not None and not callable(callback):
            raise InvalidInputError(f"scan_stats_callback must be a function, got {type(callback).__name__}")
        return self._set("scan_stats_callback", callback)

    def use_scalar_index(self, use_scalar_index: bool | None = True) -> ScannerBuilder:
        """Enable or disable the use of scalar indexes by the filter; the result is the same."""
        return self._set("use_scalar_index", use_scalar_index)

    def nearest(
        self,
        column: str,
        q: Any,
        k: int | None = None,
        metric: str | None = None,
        nprobes: int | None = None,
        minimum_nprobes: int | None = None,
        maximum_nprobes: int | None = None,
        refine_factor: int | None = None,
        use_index: bool = True,
        ef: int | None = None,
        query_parallelism: int | None = None,
        approx_mode: Literal["fast", "normal", "accurate"] = "normal",
        distance_range: tuple[float | None, float | None] | None = None,
        search_effort: float | None = None,
    ) -> ScannerBuilder:
        """Search the rows whose vectors are nearest to query vectors.

        The result contains the `k` nearest rows, ordered by distance and then by row id, and the column `_distance`
        (float32). Rows whose distance is not defined are not found: rows without a vector, with NaN in the vector or,
        with the metric cosine, with a vector of length 0.

        A vector index of the column is used if there is one. The result is then approximate: only the partitions of
        the index that are nearest to the query are searched, and distances are those of the index. Rows of fragments
        that the index does not cover are compared exactly.

        Parameters
        ----------
        column
            Column of fixed-size lists of float16, float32, float64 or uint8, or of lists of these (multivectors).
        q
            Query vector: a list, a NumPy array or an Arrow array of numbers, which are converted to the type of the
            column. Several vectors (two dimensions) are a batch: the result contains `k` rows for each of them, with
            the number of the query in the column `query_index` (int32), which is the first one. For a column of
            multivectors, they are the vectors of one query. Its distance is the sum of the distances between each of
            its vectors and the closest vector of the row.
        k
            Number of rows to find. By default the limit of the scan or, without a limit, 10.
        metric
            "L2" (squared distance, the default), "cosine" (1 - similarity), "dot" (1 - product) or, for uint8,
            "hamming" (number of different bits). If the column has a vector index and `use_index` is True, the metric
            of the index is the default.
        use_index
            Use the vector index of the column. An index with another metric than `metric`, and types that are not
            supported (IVF_RQ), are not used: the search is exact then, as `explain_plan` reports.
        distance_range
            Lower bound (inclusive) and upper bound (exclusive) of the distance; None for no bound.
        nprobes
            Number of partitions of the index that are searched, those nearest to the query. More of them find more of
            the nearest rows, and take longer. By default, the number depends on the distances to the centroids.
        minimum_nprobes, maximum_nprobes
            Limits of that number. Up to the maximum, further partitions are searched if fewer than `k` rows are found,
            for example because the filter selects few rows.
        refine_factor
            Take this multiple of `k` rows from the index, read their vectors, and order them by true distances.
        ef
            Number of vectors that the search of an HNSW graph keeps; at least `k`.
        search_effort
            Number from 0 to 1 that selects the partitions which are searched first: from `minimum_nprobes` to all of
            them; 0.5 is the default. `nprobes` is then ignored.
        query_parallelism
            Number of partitions of the index that are searched at the same time, at most the size of the thread pool;
            -1 for that size. By default or with 0, it depends on their size and on the latency of the store. The result
            does not depend on it.
        approx_mode
            "fast", "normal" or "accurate": a hint for searches in IVF_RQ indexes, which has no effect because these
            indexes are not used.

        Returns
        -------
        ScannerBuilder
            The builder.

        Raises
        ------
        ColumnNotFoundError
            If the column does not exist.
        TypeError
            If the column does not contain vectors, or an argument has another type.
        InvalidInputError
            If the query vectors do not fit the column, or an argument has an invalid value.
        OutOfRangeError
            If a number is not below 2^63.

        Examples
        --------
        >>> vectors = pa.array([[0, 0], [3, 4], [1, 1]], pa.list_(pa.float32(), 2))
        >>> points = lancetable.write_dataset(pa.table({"id": [1, 2, 3], "v": vectors}), "points.lance")
        >>> points.to_table(columns=["id"], nearest={"column": "v", "q": [1, 0], "k": 2}).to_pydict()
        {'id': [1, 3], '_distance': [1.0, 1.0]}
        """
        arguments = {name: value for name, value in locals().items() if name != "self"}
        return self._set("nearest", ops.nearest.nearest_query(self._dataset.table_version.schema, **arguments))

    def prefilter(self, prefilter: bool | None) -> ScannerBuilder:
        """Apply the filter before a search, so that it finds `k` matching rows, instead of to the rows that it finds.

        A scan without a search is not affected.
        """
        return self._set("prefilter", prefilter)

    def disable_scoring_autoprojection(self, disable: bool | None = True) -> ScannerBuilder:
        """Return the column `_distance` of a search only if it is among the requested columns."""
        return self._set("disable_scoring_autoprojection", disable)

    def fast_search(self, flag: bool | None) -> ScannerBuilder:
        """Leave out fragments that the indexes of the filter do not cover, if the filter uses indexes.

        With `nearest`, search only the fragments that the vector index of the column covers; none without an index.
        """
        return self._set("fast_search", flag)

    def with_index_segments(self, index_segments: Iterable[Any] | None) -> ScannerBuilder:
        """Select the segments of the vector index that a search uses, by their uuids; None for all.

        Only the fragments that these segments cover are searched. If `with_fragments` selects fragments, those that
        the segments do not cover are searched exactly.

        Raises
        ------
        InvalidInputError
            For an empty list or a malformed uuid; when the scan is planned, for an unknown segment, or without
            `nearest`.
        TypeError
            If `index_segments` is a single uuid or contains other objects.
        """
        if index_segments is None:
            return self._set("index_segments", None)
        from lancetable.index_metadata import parse_segments

        uuids = parse_segments(index_segments)
        if not uuids:
            raise InvalidInputError("index_segments must not be empty; omit it to use all segments")
        return self._set("index_segments", uuids)

    def row_addr_prefilter(self, allowlist: bytes | None = None, blocklist: bytes | None = None) -> ScannerBuilder:
        """Raise UnsupportedFeatureError if given, because index search is not supported."""
        scope.reject("row address lists", row_addr_allowlist=allowlist, row_addr_blocklist=blocklist)
        return self

    def progress(self, progress: ProgressLike) -> ScannerBuilder:
        """Set the progress callback of reads (except `scan_batches`), or True for a bar; see `lancetable.progress`.

        Not in pylance.

        Raises
        ------
        TypeError
            If `progress` is neither a function nor a bool.
        UnsupportedFeatureError
            If a bar is requested without tqdm.
        """
        report_of(progress)
        self._progress = progress
        return self

    def to_scanner(self, snapshot: TableVersion | None = None) -> LanceScanner:
        """Return the scanner of `snapshot`, or of the dataset's version."""
        options = ScanOptions(**{name: value for name, value in self._values.items() if value is not None})
        if options.batch_size is None and DEFAULT_BATCH_SIZE in os.environ:
            options = replace(options, batch_size=default_batch_size())
        version = self._dataset.table_version if snapshot is None else snapshot
        query, view = options.nearest, self._dataset.view_filter
        if view is not None:
            if query is not None and not options.prefilter:
                # The rows of a view are searched, whether or not the filter of the search is applied before it.
                options = replace(options, nearest=replace(query, among=view))
            else:
                combined = view if options.filter is None else conjunction(version, view, options.filter)
                options = replace(options, filter=combined)
        return LanceScanner(options, self._dataset, version, self._progress)

    def _set(self, name: str, value: Any) -> ScannerBuilder:
        self._values[name] = value
        return self

    def _count(self, name: str, value: int | None) -> ScannerBuilder:
        return self._set(name, None if value is None else check_count(name, value))


# The builder method of each key of `default_scan_options`, which is also the name of an argument of `scanner`.
SETTERS = {
    **{name: name for name in ScanOptions.__dataclass_fields__ if hasattr(ScannerBuilder, name)},
    "progress": "progress",
    "fragments": "with_fragments",
    "index_segments": "with_index_segments",
    "full_text_query": "full_text_search",
}


UNSUPPORTED = scope.missing_names(scope.SCANNER_BUILDER)


def plan_of(version: TableVersion, options: ScanOptions) -> AnyPlan:
    """Return the plan of a scan or of a search.

    Raises
    ------
    InvalidInputError
        If index segments are given without `nearest`, or for other options that cannot be combined.
    """
    with telemetry.start("plan", version.store, version.base) as span:
        span.set(version=version.version)
        if options.nearest is not None:
            return ops.nearest.plan_nearest(version, options)
        if options.index_segments is not None:
            raise InvalidInputError("with_index_segments is only supported for vector search: pass nearest=")
        return plan_scan(version, options)


def scan_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a scan among `arguments`, the `locals()` of a method, except for those that are None."""
    return {name: value for name, value in arguments.items() if value is not None and name in SETTERS}


def default_batch_size() -> int:
    """Return the batch size of the environment.

    Raises
    ------
    InvalidInputError
        If it is not a positive number.
    """
    text = os.environ[DEFAULT_BATCH_SIZE]
    if not text.isdecimal() or int(text) == 0:
        raise InvalidInputError(f"{DEFAULT_BATCH_SIZE} must be a positive number of rows, got {text!r}")
    return int(text)


def conjunction(version: TableVersion, left: Any, right: Any) -> Any:
    """Return the conjunction of two filters, each as SQL or as an expression."""
    if isinstance(left, pc.Expression) and isinstance(right, pc.Expression):
        return left & right
    terms = [term for predicate in (left, right) for term in expr.conjuncts(resolve_filter(version.schema, predicate))]
    return expr.And(tuple(terms))


def lazy_column(
    version: TableVersion, plan: ScanPlan, output: Output, values: pa.ChunkedArray, addresses: pa.ChunkedArray
) -> list[Any] | None:
    """Return a column with a `BlobFile` for each blob, at the top level or inside structs; None if it has no blobs."""
    if output.column < 0:
        return None
    field = plan.projection.columns[output.column]
    for step in output.steps:
        field = field.children[step]
    paths = list(blob_paths(version, field, ()))
    if not paths:
        return None
    from lancetable.blob import BlobFile

    live = addresses.is_valid()
    rows = addresses.filter(live).to_numpy()
    values_with_files: list[Any] = values.to_pylist() if paths[0][0] else [None] * len(values)
    for path, blob in paths:
        steps = [step for _, step in path]
        descriptions = nested_value(values.filter(live), steps)
        blobs = ops.blobs.blob_handles(version, ops.blobs.locate_in_fragments(version, blob, descriptions, rows))
        files = iter([None if handle is None else BlobFile(handle) for handle in blobs])
        column = [next(files) if is_live else None for is_live in live.to_pylist()]
        if not path:
            return column
        for row, file in zip(values_with_files, column):
            for name, _ in path[:-1]:
                row = None if row is None else row[name]
            if row is not None:
                row[path[-1][0]] = file
    return values_with_files


def blob_paths(
    version: TableVersion, field: Field, path: tuple[tuple[str, int], ...]
) -> Iterator[tuple[tuple[tuple[str, int], ...], Field]]:
    """Yield the blobs in a field, reached through structs: (name and index of each step, the blob's field)."""
    stored = version.schema.by_id.get(field.id)
    if stored is not None and (stored.is_blob or stored.is_blob_v2):
        # A part of a description, such as its size, is a plain number.
        if field.is_struct:
            yield path, stored
    elif field.is_struct:
        for index, child in enumerate(field.children):
            yield from blob_paths(version, child, (*path, (child.name, index)))


def frame_with(table: pa.Table, columns: dict[str, list[Any]], kwargs: dict[str, Any]) -> pd.DataFrame:
    """Return a table as a DataFrame in which `columns` replace columns of the table, with dtype object."""
    import pandas as pd

    names = [name for name in table.schema.names if name not in columns]
    frame: pd.DataFrame = table.select(names).to_pandas(**kwargs) if names else pd.DataFrame(index=range(len(table)))
    place = 0
    for name in table.schema.names:
        if name in columns:
            frame.insert(place, name, pd.Series(columns[name], index=frame.index, dtype=object))
        # A column may have become the index.
        place += name in frame.columns
    return frame
