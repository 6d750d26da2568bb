"""JSON indexes: an index of another kind over the values at a path of JSON documents.

    documents   {"x": 3}  {"x": null}  {}  null  {"x": 5}        details   path "x", details of a BTREE
    values      3         null         null null  5              files     those of a BTREE of int64

The first value that is not null determines the type: int64, double, string or bool. Other values must have the same
type, except that integers are converted to double. Segments that are added to an index have the type of the others; if
none remains, as after `optimize_indices(retrain=True)`, the type is determined again. The details do not contain the
type; it is that of the files, so a BLOOMFILTER, whose files do not contain it either, is not used.

Planning. pylance 14.0.2 uses these indexes for `json_get_int`, `json_get_float`, `json_get_string` and `json_get_bool`
of the column and a literal that equals the path of the index, but not for `json_extract` and `json_get`. Predicates on
the function are those on a column of its type: comparisons, BETWEEN as two queries, IN, IS NULL, IS TRUE, and
`contains` of an NGRAM; LIKE and bare booleans are not pushed down. Plans print the query as
`[Json(j = 2->x)]@j_idx(BTree)`, with the column in place of the value and the name of the target kind. The query is an
`AtJsonPath`, whose type must be that of the index (`OpenIndex.accepts`), because the functions convert values of other
types. The functions select a member by its name, while the path of an index may contain several names or elements. An
index is therefore used only if its path is one plain name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError, InvalidInputError, UnsupportedFeatureError, UnsupportedTypeError
from lancetable.expr.evaluate.json_functions import find, parse_path
from lancetable.expr.evaluate.json_items import Items, at_rows, open_documents, values_of_type
from lancetable.expr.evaluate.operators import EvaluationError
from lancetable.format import jsonb
from lancetable.format.protobuf_conversion import parse_message
from lancetable.format.schema import Schema
from lancetable.index.kind import ROW, VALUE, Batches, IndexKind, OpenIndex, Sources, kind_named, kind_of_details
from lancetable.index.queries import AtJsonPath, IndexQuery
from lancetable.proto import index_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from lancetable.format.schema import Field
    from lancetable.index.index_files import SegmentWriter
    from lancetable.index.results import IndexResult
    from lancetable.index.row_mapping import AddressMapping
    from lancetable.index.segments import SegmentFiles

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAMES: Final = {pa.int64(): "an integer", pa.float64(): "a number", pa.string(): "a string", pa.bool_(): "a boolean"}
_TYPES: Final = (*_NAMES,)
_CHOOSE: Final = "choose the path of a single value"
_VALUE_COLUMNS: Final = {
    "BTREE": ("page_lookup.lance", "max"),
    "BITMAP": ("bitmap_page_lookup.lance", "keys"),
    "ZONEMAP": ("zonemap.lance", "max"),
}
"""Column with the type of the values; it is null for nulls only. The files of a BLOOMFILTER do not have one."""


class OpenJsonPath(OpenIndex):
    """An open JSON segment."""

    def __init__(self, files: SegmentFiles, target: OpenIndex, kind: IndexKind, path: str) -> None:
        self.target = target
        self.kind = kind
        self.path = path
        file, self._column = _VALUE_COLUMNS.get(kind.name, (None, ""))
        self._file = None if file is None else files.open(file)

    @property
    def value_type(self) -> pa.DataType | None:
        """The type of the indexed values, None if the files do not contain it."""
        if self.kind.name == "NGRAM":
            return pa.string()
        return None if self._file is None else self._file.column_type(self._column)

    @property
    def is_mergeable(self) -> bool:
        """False if all values are null, so that the type of other values can be a different one."""
        if self._file is None:
            return True
        (values,) = self._file.read_arrays([self._column])
        return bool(values.null_count < len(values))

    def accepts(self, query: IndexQuery) -> bool:
        """Return whether the indexed values have the type of a query."""
        return isinstance(query, AtJsonPath) and query.data_type == self.value_type

    def search(self, query: IndexQuery) -> IndexResult:
        """Return the rows that a query selects."""
        assert isinstance(query, AtJsonPath)
        if not self.accepts(query):
            raise InvalidInputError(
                f"the index stores values of type {self.value_type} at path {self.path!r}, "
                f"but the query expects {query.data_type}; scan the column instead"
            )
        return self.target.search(query.query)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The options with which the segment was built. See OpenIndex."""
        return {
            "path": self.path,
            "target_index_type": self.kind.name,
            "target_index_parameters": dict(self.target.parameters),
        }

    @property
    def parameters_with_type(self) -> Mapping[str, Any]:
        """The options, and the type of the values unless all of them are null."""
        return {**self.parameters, "value_type": self.value_type if self.is_mergeable else None}

    def statistics(self) -> dict[str, Any]:
        """Return statistics of the segment."""
        return self.target.statistics()

    def prewarm(self) -> None:
        """Read all pages into the cache."""
        self.target.prewarm()

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory."""
        return self.target.memory_bytes + 256


@dataclass(frozen=True)
class JsonPath(IndexKind):
    """JSON. The kind of the target is known for a segment, and if options are given."""

    target: IndexKind | None = None

    name = "JSON"
    type_url = "/lance.index.pb.JsonIndexDetails"
    max_version = 0

    @property
    def plan_name(self) -> str:  # type: ignore[override]  # a class variable of other kinds
        """Name in plans, that of the target."""
        return "Json" if self.target is None else self.target.plan_name

    def for_segment(self, files: SegmentFiles) -> JsonPath | None:
        """Return the kind with the target of a segment, None if this library cannot read it."""
        try:
            details = _parse(files.details)
        except CorruptFileError as error:
            raise CorruptFileError(
                f"index {files.metadata.name!r}: malformed settings; drop the index and create it again",
                path=files.version.location.path,
            ) from error
        target = kind_of_details(details.target_details.type_url)
        return None if target is None or super().for_segment(files) is None else JsonPath(target)

    def for_options(self, options: Mapping[str, Any]) -> JsonPath:
        """Return the kind with the target that options select.

        Raises InvalidInputError if they are incomplete, and UnsupportedFeatureError for an unknown kind.
        """
        target = _option(options, "target_index_type")
        _option(options, "path")
        return JsonPath(kind_named(target))

    def value_type(self, data_type: pa.DataType) -> None:
        """Return None: documents can contain values of any type. See IndexKind."""

    def version_for(self, *, stable_row_ids: bool) -> int:
        """Return the `index_version` of new segments.

        Raises UnsupportedFeatureError if the target stores addresses of tables with stable row ids. The details do not
        contain the version of the target, so pylance would read them as row ids.
        """
        target = self._target
        version = target.version_for(stable_row_ids=stable_row_ids)
        if stable_row_ids and not target.stores_row_ids(version):
            raise UnsupportedFeatureError(
                f"a JSON index of type {target.name} is not supported for tables with stable row ids; use BITMAP",
                feature=f"JSON indexes of type {target.name} with stable row ids",
            )
        return 0

    def stores_row_ids(self, index_version: int) -> bool:
        """Return whether segments of tables with stable row ids store these ids rather than addresses."""
        return self._target.stores_row_ids(index_version)

    def check_field(self, field: Field, path: str) -> None:
        """Raise UnsupportedTypeError if the column does not contain JSON documents."""
        if not field.is_json:
            raise UnsupportedTypeError(
                f"column {path!r} has the type {field.data_type}, but a JSON index needs a JSON column",
                feature=f"JSON indexes of {field.data_type}",
            )

    def answers(self, query: IndexQuery, details: bytes) -> bool:
        """Return whether an index with these details can answer a query, if it has the type of the query."""
        message = _parse(details)
        return (
            isinstance(query, AtJsonPath)
            and query.path == message.path
            and _PLAIN_NAME.fullmatch(query.path) is not None
            and self._target.answers(query.query, message.target_details.value)
        )

    def is_exact(self, query: IndexQuery, details: bytes) -> bool:
        """Return whether the answer of the target is exact."""
        assert isinstance(query, AtJsonPath)
        return self._target.is_exact(query.query, _parse(details).target_details.value)

    def open(self, files: SegmentFiles) -> OpenJsonPath:
        """Open a segment."""
        message = _parse(files.details)
        details = message.target_details
        metadata = files.metadata.with_details(details.type_url, details.value)
        target = self._target.open(replace(files, metadata=metadata))
        return OpenJsonPath(files, target, self._target, message.path)

    def merge(
        self, writer: SegmentWriter, field: Field, sources: Sources, batches: Batches, options: Mapping[str, Any]
    ) -> Message:
        """Write one segment with the entries of several others and of new rows, and return its details.

        The values of `batches` are JSON strings or JSONB. Options are the `path`, the `target_index_type`,
        `target_index_parameters`, a dict or its JSON string, and `value_type`, an Arrow type; by default, the first
        value determines it. Without options, those of the first source apply.
        """
        targets, path, data_type = [], None, None
        for source, row_filter in sources:
            assert isinstance(source, OpenJsonPath)
            if source.path != (path or source.path) or source.value_type != (data_type or source.value_type):
                raise InvalidInputError(f"segments of a JSON index differ in path or type: {path!r}, {source.path!r}")
            path, data_type = source.path, source.value_type
            targets.append((source.target, row_filter))
        path, data_type = path or _option(options, "path"), data_type or options.get("value_type")
        _check_path(path)
        parameters = options.get("target_index_parameters") or {}
        if isinstance(parameters, str):
            parameters = _parse_parameters(parameters)
        data_type, values = _extract(batches, path, data_type)
        target_field = Schema.from_arrow(pa.schema([pa.field(field.name, data_type)])).fields[0]
        self._target.check_field(target_field, f"{field.name}, path {path}")
        details = self._target.merge(writer, target_field, targets, values, parameters)
        message = index_pb2.JsonIndexDetails(path=path)
        message.target_details.type_url = self._target.type_url
        message.target_details.value = details.SerializeToString()
        return message

    def remap(self, writer: SegmentWriter, source: OpenIndex, mapping: AddressMapping) -> bool:
        """Write a segment whose rows are mapped."""
        assert isinstance(source, OpenJsonPath)
        return self._target.remap(writer, source.target, mapping)

    @property
    def _target(self) -> IndexKind:
        if self.target is None:
            raise InvalidInputError("a JSON index needs the options path and target_index_type")
        return self.target


def _parse(details: bytes) -> index_pb2.JsonIndexDetails:
    """Parse details. Raises CorruptFileError if they are malformed."""
    message: index_pb2.JsonIndexDetails = parse_message(index_pb2.JsonIndexDetails, details)
    return message


def _option(options: Mapping[str, Any], name: str) -> str:
    value = options.get(name)
    if not isinstance(value, str):
        raise InvalidInputError(f"a JSON index needs the option {name!r}, a string; got {value!r}")
    return value


def _parse_parameters(text: str) -> dict[str, Any]:
    try:
        parameters = json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"target_index_parameters is not JSON: {error}") from error
    if not isinstance(parameters, dict):
        raise InvalidInputError(f"target_index_parameters must be a JSON object, got {text!r}")
    return parameters


def _check_path(path: str) -> None:
    try:
        parse_path(path)
    except EvaluationError as error:
        raise InvalidInputError(str(error)) from error


def _extract(
    batches: Batches, path: str, data_type: pa.DataType | None
) -> tuple[pa.DataType, Iterator[pa.RecordBatch]]:
    """Return the type of the values at a path, and batches of these values; without values the type is string."""
    found: Iterator[tuple[Items, pa.Array]]
    found = ((_values(batch.column(VALUE), path), batch.column(ROW)) for batch in batches)
    nulls = []
    if data_type is None:
        for values, rows in found:
            if len(values):
                data_type = _TYPES[_types_of(values.select(slice(1)), path)[0]]
                found = chain([(values, rows)], found)
                break
            nulls.append(rows)
    chosen = pa.string() if data_type is None else data_type
    typed = ((_array(values, len(rows), chosen, path), rows) for values, rows in found)
    empty = ((pa.nulls(len(rows), chosen), rows) for rows in nulls)
    return chosen, (pa.record_batch([*columns], [VALUE, ROW]) for columns in chain(empty, typed))


def _values(documents: pa.Array, path: str) -> Items:
    """Return the items at a path that are not null."""
    if isinstance(documents, pa.ExtensionArray):
        documents = documents.storage
    if pa.types.is_string(documents.type) or pa.types.is_large_string(documents.type):
        documents = jsonb.from_text(documents, VALUE)
    found = find(open_documents(documents), path)
    if len(np.unique(found.rows)) < len(found):
        raise InvalidInputError(f"JSON path {path!r} selects several values of a document; {_CHOOSE}")
    return found.select(found.kinds != jsonb.NULL)


def _types_of(values: Items, path: str) -> npt.NDArray[np.intp]:
    """Return the type of each value, as a position in `_TYPES`."""
    types = np.full(len(values), -1, np.intp)
    for position, data_type in reversed([*enumerate(_TYPES)]):
        types[values_of_type(values, data_type)[0]] = position
    if (types < 0).any():
        raise InvalidInputError(f"the value at JSON path {path!r} is an array or object; {_CHOOSE}")
    return types


def _array(values: Items, num_rows: int, data_type: pa.DataType, path: str) -> pa.Array:
    found, typed = values_of_type(values, data_type)
    if len(found) < len(values):
        names = [_NAMES[data_type], *(_NAMES[_TYPES[each]] for each in np.unique(_types_of(values, path)))]
        raise InvalidInputError(
            f"the values at JSON path {path!r} have several types: {' and '.join(dict.fromkeys(names))}; an index needs"
            " values of one type"
        )
    return at_rows(typed, values.rows, num_rows)


KIND = JsonPath()
