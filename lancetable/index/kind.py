"""Interface of the kinds of indexes, and their registry. Each kind is a module of this package.

build    values of a column, with their rows  ->  files of a segment
open     files of a segment                   ->  OpenIndex, which answers queries
merge    several segments and new values      ->  files of one segment
remap    a segment, old row -> new row        ->  files of a segment, after a compaction
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import InvalidInputError, UnsupportedFeatureError, UnsupportedTypeError
from lancetable.format.index import kind_name
from lancetable.index.row_mapping import AddressMapping
from lancetable.index.sort_keys import Int64, is_ordered

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from lancetable.format.row_address import U64Array
    from lancetable.format.schema import Field
    from lancetable.index.index_files import SegmentWriter
    from lancetable.index.queries import IndexQuery
    from lancetable.index.results import IndexResult
    from lancetable.index.segments import SegmentFiles

VALUE, ROW = "value", "row"
"""Columns of the batches from which indexes are built: values, and row addresses or stable row ids (uint64)."""


@runtime_checkable
class IndexedValues(Iterable[pa.RecordBatch], Protocol):
    """Values of a column from which an index is built, in the batches that `IndexKind.build` describes."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""

    def sample(self, num_rows: int, seed: int | None) -> pa.Array:
        """Return the values of up to `num_rows` distinct rows, drawn at random."""


RowFilter = Callable[["U64Array"], npt.NDArray[np.bool_]]
"""Function that returns for each row whether a segment may still name it: live rows of the fragments that it covers.

If rows are addresses, the result is the same for all rows of a fragment.
"""


class OpenIndex(ABC):
    """A segment that is open for searches. Its rows are those that the kind stores: addresses or stable row ids.

    Immutable and thread-safe; one object is cached for each segment.
    """

    @abstractmethod
    def search(self, query: IndexQuery) -> IndexResult:
        """Return the rows that a query selects. `query` is one that `IndexKind.answers` accepted.

        Raises CorruptFileError if a file of the segment is damaged.
        """

    def accepts(self, query: IndexQuery) -> bool:
        """Return whether this segment can answer a query that `IndexKind.answers` accepted.

        Raises CorruptFileError if a file of the segment is damaged.
        """
        return True

    @abstractmethod
    def statistics(self) -> dict[str, Any]:
        """Return statistics of the segment with the keys of pylance's `index_statistics`."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The options of `IndexKind.build` with which the segment was built; new segments of an index get the same."""
        return {}

    @property
    def parameters_with_type(self) -> Mapping[str, Any]:
        """The parameters, and the type of the values if the column does not determine it."""
        return self.parameters

    @property
    def training_parameters(self) -> Mapping[str, Any]:
        """The options with which a segment is built that is trained on the current values."""
        return self.parameters

    @property
    def value_type(self) -> pa.DataType | None:
        """The type of the indexed values, None if the files do not contain it."""
        return None

    def check_rows(self, fragment_ids: Int64, num_rows: Int64) -> None:  # noqa: B027  # most kinds cannot
        """Raise CorruptFileError if rows are missing, at once or in searches, for kinds that can detect this.

        `num_rows` are the numbers of live rows of the covered fragments. Called once, before the first search.
        """

    @property
    def is_mergeable(self) -> bool:
        """False if the segment must be built from the data to add rows, because their values may have another type."""
        return True

    def can_merge(self, other: OpenIndex) -> bool:
        """Return whether the entries of another segment, which is mergeable, can be merged with those of this one."""
        return True

    @abstractmethod
    def prewarm(self) -> None:
        """Read all pages into the cache."""

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """Approximate size in memory, without the pages that are cached separately."""


Sources: TypeAlias = Sequence[tuple[OpenIndex, RowFilter]]
"""Segments whose entries are merged, each with the filter of the rows that it may still name."""
Batches: TypeAlias = Iterable[pa.RecordBatch]
"""New rows, in the batches that `IndexKind.build` describes."""


class IndexKind(ABC):
    """Kind of an index. Immutable."""

    name: ClassVar[str]
    """Name in `create_scalar_index`, such as "BTREE"."""
    plan_name: str
    """Name in plans and descriptions, such as "BTree"."""
    type_url: ClassVar[str]
    """Type of the details in the manifest."""
    needs_training: ClassVar[bool] = False
    """True if segments are trained on values. By default, `optimize_indices` writes new rows to a new segment."""
    max_version: ClassVar[int]
    """Greatest `index_version` that this library can read."""

    def for_segment(self, files: SegmentFiles) -> IndexKind | None:
        """Return the kind of a segment by its entry, None if this library cannot read it. No file is opened."""
        return self if 0 <= (files.metadata.index_version or 0) <= self.max_version else None

    def for_options(self, options: Mapping[str, Any]) -> IndexKind:
        """Return the kind that builds segments with these options. Raises InvalidInputError if they are invalid."""
        return self

    def value_type(self, data_type: pa.DataType) -> pa.DataType | None:
        """Return the type of the indexed values of a column of a type, None if it does not determine their type."""
        return data_type

    def version_for(self, *, stable_row_ids: bool) -> int:
        """Return the `index_version` of new segments, by default the greatest one."""
        return self.max_version

    def stores_row_ids(self, index_version: int) -> bool:
        """Return whether segments of tables with stable row ids store these ids, the default, rather than addresses."""
        return True

    @abstractmethod
    def check_field(self, field: Field, path: str) -> None:
        """Raise UnsupportedTypeError, with the path of the column, if the type cannot be indexed."""

    @abstractmethod
    def answers(self, query: IndexQuery, details: bytes) -> bool:
        """Return whether an index of this kind and with these details can answer a query."""

    def is_exact(self, query: IndexQuery, details: bytes) -> bool:
        """Return whether the answer to a query is exact, rather than at most.

        `query` is one that `answers` accepted. Only exact answers can be negated.
        """
        return True

    @abstractmethod
    def open(self, files: SegmentFiles) -> OpenIndex:
        """Open a segment. Raises CorruptFileError if it is damaged."""

    def build(self, writer: SegmentWriter, field: Field, batches: Batches, options: Mapping[str, Any]) -> Message:
        """Write the files of a new segment and return its details.

        Parameters
        ----------
        writer
            Writer of the files.
        field
            The indexed column.
        batches
            Batches with the columns `VALUE` and `ROW`, in physical order, without deleted rows. A batch contains rows
            of one fragment. No batch at all builds an empty index. Kinds that need training get `IndexedValues`.
        options
            Parameters of `create_scalar_index`, such as `rows_per_zone`.

        Raises
        ------
        InvalidInputError
            If an option is unknown or invalid.
        """
        return self.merge(writer, field, (), batches, options)

    @abstractmethod
    def merge(
        self, writer: SegmentWriter, field: Field, sources: Sources, batches: Batches, options: Mapping[str, Any]
    ) -> Message:
        """Write one segment with the entries of several others and of new rows, and return its details."""

    def remap(self, writer: SegmentWriter, source: OpenIndex, mapping: AddressMapping) -> bool:
        """Write a segment whose rows are mapped. Return False, without writing, if this kind cannot be remapped."""
        return False


def checked_options(kind: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a build, with defaults for missing ones.

    Raises InvalidInputError if an option is unknown, or if its type differs from that of its default.
    """
    for name, value in options.items():
        if name not in defaults:
            known = ", ".join(defaults) or "none"
            raise InvalidInputError(f"{kind} indexes have no option {name!r}; their options are: {known}")
        expected = type(defaults[name])
        if type(value) is not expected and not (expected is float and type(value) is int):
            raise InvalidInputError(f"option {name!r} must be of type {expected.__name__}, got {value!r}")
    return {**defaults, **options}


def check_ordered(field: Field, path: str, kind: str) -> None:
    """Raise UnsupportedTypeError unless values of a column can be ordered."""
    if field.is_json:
        hint = "create an index of one of its paths"
    elif field.is_blob or field.children or not is_ordered(field.data_type):
        hint = "choose a column of numbers, strings, binaries, dates or times"
    else:
        return
    raise UnsupportedTypeError(
        f"column {path!r} of type {field.logical_type} cannot have a {kind} index; {hint}",
        feature=f"{kind} indexes of {field.logical_type} columns",
    )


def check_same_type(kind: str, indexed: pa.DataType, field: Field) -> None:
    """Raise InvalidInputError if a segment has values of another type than the column."""
    if indexed != field.data_type:
        raise InvalidInputError(
            f"the {kind} index of column {field.name!r} has values of type {indexed}, but the column has"
            f" {field.data_type}; create the index again"
        )


_MODULES = {
    "BTree": "btree",
    "Bitmap": "bitmap",
    "LabelList": "label_list",
    "NGram": "ngram",
    "ZoneMap": "zone_map",
    "BloomFilter": "bloom_filter",
    "Json": "json_path",
    "Vector": "vector.vector_kind",
}
_NOT_SCALAR = frozenset(["Vector"])


def kind_of_details(type_url: str) -> IndexKind | None:
    """Return the kind of an index by the type of its details, or None if this library does not know it."""
    module = _MODULES.get(kind_name(type_url))
    return None if module is None else _load(module)


def kind_named(name: str) -> IndexKind:
    """Return the kind of an index by its name in `create_scalar_index`, in any case.

    Raises UnsupportedFeatureError for an unknown kind.
    """
    plain = name.replace("_", "").upper()
    scalar = {kind: module for kind, module in _MODULES.items() if kind not in _NOT_SCALAR}
    module = next((module for kind, module in scalar.items() if kind.upper() == plain), None)
    if module is None:
        known = ", ".join(_load(module).name for module in scalar.values())
        raise UnsupportedFeatureError(
            f"scalar indexes of type {name!r} are not supported; choose one of {known}", feature=f"{name} indexes"
        )
    return _load(module)


@cache
def _load(module: str) -> IndexKind:
    kind: IndexKind = import_module(f"lancetable.index.{module}").KIND
    return kind
