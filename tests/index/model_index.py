"""A kind of index that keeps values and rows in memory, as a model for tests of planning and scans.

`add_index` builds an index of this kind over some fragments of a version and commits it. Its answers are evaluated from
the values by the expression evaluator. They are exact or at most, and the index answers a choice of queries.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyroaring

from lancetable.commit.commit_loop import commit_transaction
from lancetable.expr.evaluate.evaluator import evaluate
from lancetable.expr.syntax import ast
from lancetable.format import transaction as tx
from lancetable.format.index import IndexMetadata
from lancetable.format.transaction import Transaction
from lancetable.index import kind as kinds
from lancetable.index import segments
from lancetable.index.kind import IndexKind, OpenIndex
from lancetable.index.queries import (
    Contains,
    HasLabels,
    IndexQuery,
    IsIn,
    IsNull,
    MatchesRegex,
    Range,
    StartsWith,
)
from lancetable.index.results import Exactness, IndexResult
from lancetable.index.row_sets import RowSet
from lancetable.index.search_statistics import note_comparisons
from lancetable.index.segments import SegmentFiles
from lancetable.ops.read.scan import scan_table
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.proto import table_pb2
from lancetable.table.version import TableVersion

TYPE_URL = "/lance.table.ModelIndexDetails"
QUERIES = (IsIn, Range, IsNull, StartsWith, HasLabels, Contains, MatchesRegex)
_ENTRIES: dict[uuid.UUID, tuple[pa.ChunkedArray, np.ndarray[Any, Any]]] = {}


def predicate_of(query: IndexQuery, data_type: pa.DataType) -> ast.Expr:
    """Return a query as a predicate on the column `v`."""
    column = ast.Column(("v",), data_type)

    def call(function: str, *args: ast.Expr) -> ast.Expr:
        return ast.Call(function, (column, *args), pa.bool_())

    def text(value: str) -> ast.Expr:
        return ast.Literal(pa.scalar(value))

    match query:
        case IsIn():
            assert query.values.type == data_type
            return ast.InList(column, query.values)
        case Range():
            pairs = [
                (">=" if query.includes_lower else ">", query.lower),
                ("<=" if query.includes_upper else "<", query.upper),
            ]
            terms = [ast.Compare(op, column, ast.Literal(bound)) for op, bound in pairs if bound is not None]
            assert all(bound.type == data_type for _, bound in pairs if bound is not None)
            return terms[0] if len(terms) == 1 else ast.And(tuple(terms))
        case IsNull():
            return ast.IsNull(column)
        case StartsWith():
            return call("starts_with", text(query.prefix))
        case Contains():
            return call("contains", text(query.text))
        case MatchesRegex():
            return call("regexp_like", text(query.pattern), text("s"))
        case HasLabels():
            labels = pa.ListArray.from_arrays(pa.array([0, len(query.values)], pa.int32()), query.values)[0]
            return call("array_has_all" if query.all_of_them else "array_has_any", ast.Literal(labels))
    raise AssertionError(query)


class ModelIndex(OpenIndex):
    def __init__(self, files: SegmentFiles) -> None:
        self._values, self._rows = _ENTRIES[files.metadata.uuid]
        self._details = json.loads(files.details)

    def search(self, query: IndexQuery) -> IndexResult:
        table = pa.table({"v": self._values})
        result = evaluate(predicate_of(query, self._values.type), table)
        result = result.combine_chunks() if isinstance(result, pa.ChunkedArray) else result
        note_comparisons(len(self._rows))
        null = np.asarray(result.is_null())
        true = np.asarray(result.fill_null(False))
        if ModelKind().is_exact(query, json.dumps(self._details).encode()):
            return IndexResult(RowSet.of(self._rows[true]), RowSet.of(self._rows[null]))
        others = np.random.default_rng(self._details["seed"]).random(len(true)) < 0.3
        true |= others
        return IndexResult(RowSet.of(self._rows[true]), RowSet.of(self._rows[null & ~true]), Exactness.AT_MOST)

    def statistics(self) -> dict[str, Any]:
        return {}

    def prewarm(self) -> None:
        pass

    @property
    def memory_bytes(self) -> int:
        return 1000


class ModelKind(IndexKind):
    name: ClassVar = "MODEL"
    plan_name: ClassVar = "Model"
    type_url: ClassVar = TYPE_URL
    max_version: ClassVar = 1

    def version_for(self, *, stable_row_ids: bool) -> int:
        return 0

    def stores_row_ids(self, index_version: int) -> bool:
        return index_version == 0

    def check_field(self, field: Any, path: str) -> None:
        pass

    def answers(self, query: IndexQuery, details: bytes) -> bool:
        return type(query).__name__ in json.loads(details)["answers"]

    def is_exact(self, query: IndexQuery, details: bytes) -> bool:
        return type(query).__name__ in json.loads(details)["exact"]

    def open(self, files: SegmentFiles) -> OpenIndex:
        return ModelIndex(files)

    def build(self, *_: Any) -> Any:
        raise NotImplementedError

    merge = remap = build


@contextmanager
def registered() -> Iterator[None]:
    """Let entries of the model's type be opened in a `with` block."""

    def kind_of(type_url: str) -> IndexKind | None:
        return ModelKind() if type_url == TYPE_URL else kinds.kind_of_details(type_url)

    with patch.object(segments, "kind_of_details", kind_of):
        yield


def add_index(
    version: TableVersion,
    column: str,
    *,
    fragments: Collection[int] | None = None,
    name: str | None = None,
    exact: Collection[type] = QUERIES,
    answers: Collection[type] = QUERIES,
    seed: int = 0,
    index_version: int = 0,
) -> TableVersion:
    """Build a segment of an index over the live rows of some fragments, by default all, and commit it.

    With `index_version` 0, it stores stable row ids if the table has them, else addresses.
    """
    field = version.schema.field(column)
    assert field is not None
    ids = [fragment.id for fragment in version.manifest.fragments if fragments is None or fragment.id in fragments]
    row = "_rowid" if index_version == 0 else "_rowaddr"
    rows = scan_table(version, plan_scan(version, ScanOptions({"v": column, row: row}, fragments=ids)))
    identifier = uuid.uuid4()
    values = rows.column("v")
    if isinstance(values.type, pa.BaseExtensionType):
        values = pa.chunked_array([chunk.storage for chunk in values.chunks], values.type.storage_type)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    _ENTRIES[identifier] = values, rows.column(row).to_numpy()
    details = {
        "exact": [query.__name__ for query in exact],
        "answers": [query.__name__ for query in answers],
        "seed": seed,
    }
    message = table_pb2.IndexMetadata()
    message.index_details.type_url = TYPE_URL
    message.index_details.value = json.dumps(details).encode()
    entry = IndexMetadata(
        uuid=identifier,
        name=name or f"{column}_idx",
        fields=(field.id,),
        dataset_version=version.version,
        fragment_bitmap=pyroaring.BitMap(ids).serialize(),
        index_version=index_version,
        type_url=TYPE_URL,
        raw=message.SerializeToString(),
    )
    return commit_transaction(version, Transaction.create(version.version, tx.CreateIndex((entry,))))
