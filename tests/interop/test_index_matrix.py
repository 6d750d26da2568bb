"""Each library uses the indexes of the other: every kind, every type that it supports, every form of tables.

Tables have nulls, NaN, extreme values, deleted rows and several fragments, or they are empty or full of nulls. A
predicate selects the same rows in four scans: by both libraries, with and without the index, which their plans contain.
"""

from __future__ import annotations

import itertools
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lance.indices import IndexConfig as TheirConfig

import lancetable
from lancetable.index.kind import kind_named
from lancetable.indices import IndexConfig
from tests.index import indexed_tables as tables
from tests.index.segment_files import field_of, writer_of
from tests.index.test_json_path import GETTERS, VALUES, documents_of
from tests.index.test_label_list import LABEL_TYPES, lists_of_type, literal
from tests.index.test_label_list import queries_of as queries_of_labels
from tests.index.test_ngram import texts_of

ROWS = 70
FORMS = [(False, "0.1"), *itertools.product([False, True], ["2.0", "2.1", "2.2"])]
ADDRESSES_OF_DOCUMENTS = [["JSON", "BTREE"], ["JSON", "ZONEMAP"]]


@dataclass(frozen=True)
class Case:
    """A kind of index with its parameters, the values of the column "v", and predicates on it."""

    name: str
    kind: str
    parameters: dict[str, Any]
    values: Callable[[int], pa.Array]
    predicates: Callable[[pa.Array], Iterable[str]]

    def __str__(self) -> str:
        return self.name

    @property
    def forms(self) -> list[tuple[bool, str]]:
        """Stable row ids and format of the tables.

        Some indexes of documents cannot store stable row ids. pylance does not write documents and empty dictionaries
        in 0.1.
        """
        return [
            (stable, version)
            for stable, version in FORMS
            if not (stable and self.name.split()[:2] in ADDRESSES_OF_DOCUMENTS)
            and not (version == "0.1" and (self.kind == "json" or "dictionary" in self.name))
        ]

    def create(self, library: Any, uri: str) -> None:
        """Create the index by a library."""
        make_config = IndexConfig if library is lancetable else TheirConfig
        config = make_config(self.kind, self.parameters) if self.parameters else self.kind
        library.dataset(uri).create_scalar_index("v", config, name="v_idx", replace=True)


# ------------------------------------------------------------------------------------------------------- the predicates


def predicates_of_values(values: pa.Array, *, ranges: bool = True) -> Iterator[str]:
    for query in tables.queries_of(values, ranges=ranges):
        sql = tables.sql_of(query)
        if sql is not None and sql != "v in (false)":  # which pylance rewrites to a negation
            yield sql


def predicates_of_labels(lists: pa.Array) -> Iterator[str]:
    """Yield predicates without floating point zeros: labels of either sign are equal here, but not in pylance."""
    for query in queries_of_labels(lists):
        labels = query.values
        has_zero = pa.types.is_floating(labels.type) and 0.0 in labels.to_pylist()
        if not labels.null_count and not has_zero:
            labels = ", ".join(map(literal, labels))
            yield f"array_has_{'all' if query.all_of_them else 'any'}(v, [{labels}])"


def predicates_of_texts(texts: pa.Array) -> Iterator[str]:
    for text in ("hello", "llo wor", "Héll", "raße", "123", "zzz", "ello x", "本語xyz"):
        yield f"contains(v, '{text}')"
    if pa.types.is_large_string(texts.type):
        return  # pylance does not use the index for other predicates
    for pattern in ("h.llo", "hel+o", "(hello|world) xyz", "^abc", "zzz|hello"):
        yield f"regexp_match(v, '{pattern}')"
    yield "v LIKE '%hello w%'"


def predicates_of_documents(data_type: pa.DataType) -> Iterator[str]:
    value = f"json_get_{GETTERS[data_type]}(v, 'x')"
    yield f"{value} IS NULL"
    if data_type == pa.bool_():
        yield from (f"{value} IS TRUE", f"{value} IS FALSE")
        return
    first, second = ("'b'", "'ä'") if data_type == pa.string() else ("1", "2.5" if data_type == pa.float64() else "7")
    yield from (f"{value} = {first}", f"{value} > {first}", f"{value} <= {second}", f"{value} IN ({first}, {second})")
    yield f"{value} >= {first} AND {value} < {second}"


# ------------------------------------------------------------------------------------------------------------ the cases


def cases() -> Iterator[Case]:
    """Yield a case for each kind and type."""
    of_types = {"BTREE": tables.ORDERED_TYPES, "BITMAP": tables.ORDERED_TYPES, "ZONEMAP": tables.ORDERED_TYPES}
    options: dict[str, dict[str, Any]] = {"BTREE": {"zone_size": 8}, "BITMAP": {}, "ZONEMAP": {"rows_per_zone": 7}}
    for kind, types in of_types.items():
        for data_type in types:
            yield case_of_type(kind, data_type, options[kind])
    for data_type in tables.HASHED_TYPES:
        yield case_of_type("BLOOMFILTER", data_type, {"number_of_items": 7, "probability": 0.01}, ranges=False)
    for data_type in LABEL_TYPES:
        name = f"LABEL_LIST {data_type}"
        yield Case(name, "LABEL_LIST", {}, lambda n, kind=data_type: lists_of_type(kind, n), predicates_of_labels)
    for data_type in (pa.string(), pa.large_string()):
        name = f"NGRAM {data_type}"
        yield Case(name, "NGRAM", {}, lambda n, kind=data_type: texts_of(n, kind), predicates_of_texts)
    for target, data_type in itertools.product(["BTREE", "BITMAP", "ZONEMAP"], VALUES):
        yield case_of_documents(target, data_type)


def case_of_type(kind: str, data_type: pa.DataType, parameters: dict[str, Any], *, ranges: bool = True) -> Case:
    def predicates(values: pa.Array) -> Iterator[str]:
        # No library uses a BITMAP for prefixes.
        found = predicates_of_values(values, ranges=ranges)
        return (each for each in found if kind != "BITMAP" or not each.startswith("starts_with"))

    def values(n: int) -> pa.Array:
        """Return values without negative NaN, which is below -inf in pylance; here any NaN is above inf."""
        drawn = tables.values_of_type(data_type, n)
        is_float = pa.types.is_floating(data_type)
        return pc.if_else(pc.is_nan(drawn), pa.scalar(math.nan, data_type), drawn) if is_float else drawn

    return Case(f"{kind} {data_type}", kind, parameters, values, predicates)


def case_of_documents(target: str, data_type: pa.DataType) -> Case:
    def values(n: int) -> pa.Array:
        first = VALUES[data_type][0]  # is not deleted, so that it determines the type
        documents = itertools.cycle(
            [json.dumps({"x": first}), *documents_of(VALUES[data_type]), json.dumps({"y": 3}), None]
        )
        return pa.array(itertools.islice(documents, n), pa.json_())

    parameters = {"path": "x", "target_index_type": target}
    return Case(f"JSON {target} {data_type}", "json", parameters, values, lambda _: predicates_of_documents(data_type))


CASES = list(cases())
ZONES_OF_FLOATS = {"ZONEMAP halffloat", "ZONEMAP float", "ZONEMAP double"}
"""Cases in which pylance misses rows: its searches skip zones that contain only NaN and nulls."""


# ----------------------------------------------------------------------------------------------------------- the checks


def check(uri: str, case: Case, values: pa.Array, *, is_used: bool = True) -> None:
    """Compare the rows of four scans for each predicate, and check that both libraries use the index."""
    ours, theirs = lancetable.dataset(uri), lance.dataset(uri)
    for predicate in case.predicates(values):
        # With an index of documents, pylance loses nulls in NOT (x IS TRUE).
        negation = [] if predicate.endswith((" IS TRUE", " IS FALSE")) else [f"NOT ({predicate})"]
        for filter in (predicate, *negation):
            expected = rows_of(theirs, filter, use_index=False)
            # pylance raises errors if all documents are null: it compares numbers with the strings of the index.
            by_pylance = [(theirs, True)] if is_used or case.kind != "json" else []
            for ds, use_index in ((ours, False), (ours, True), *by_pylance):
                found = rows_of(ds, filter, use_index=use_index)
                if ds is theirs and case.name in ZONES_OF_FLOATS:
                    found = sorted({*found} | ({*expected} & {*rows_of(theirs, "isnan(v)", use_index=False)}))
                who = f"{type(ds).__module__}, use_scalar_index={use_index}"
                assert found == expected, (filter, who, sorted({*found} ^ {*expected}))
            assert ours.count_rows(filter) == len(expected), filter
            if is_used and "nan" not in filter:  # equality with NaN is not searched here
                is_expected = uses_index(theirs, filter)
                assert is_expected or filter != predicate, filter
                assert uses_index(ours, filter) or not is_expected, filter


def rows_of(ds: Any, filter: str, *, use_index: bool) -> list[int]:
    # pylance trusts the statistics of 0.1, which count nulls that it reads as zero, and do not contain NaN.
    scanner = ds.scanner(columns=["id"], filter=filter, use_scalar_index=use_index, use_stats=False)
    return sorted(scanner.to_table()["id"].to_pylist())


def uses_index(ds: Any, filter: str) -> bool:
    return "@v_idx(" in ds.scanner(columns=["id"], filter=filter).explain_plan()


def one_form(case: Case) -> tuple[bool, str]:
    """Return a form for the short tests; the cases of a kind have different ones."""
    return case.forms[zlib.crc32(case.name.encode()) % len(case.forms)]


def write(path: Path, values: pa.Array, stable: bool, version: str) -> str:
    """Write a table of three fragments, of which rows are deleted."""
    tables.write_table(path, values, version=version, stable=stable, fragments=3).delete("id % 11 = 3")
    return str(path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_library_uses_the_indexes_of_the_other(tmp_path: Path, case: Case, scale: int) -> None:
    chosen = case.forms if scale > 1 else [one_form(case)]
    values = case.values(ROWS)
    for number, (stable, version) in enumerate(chosen):
        uri = write(tmp_path / str(number), values, stable, version)
        for library in (lancetable, lance):
            case.create(library, uri)
            check(uri, case, values)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_library_uses_the_indexes_of_the_other_without_values(tmp_path: Path, case: Case) -> None:
    stable, version = one_form(case)
    values = case.values(ROWS)
    for number, stored in enumerate((values[:0], pa.nulls(20, values.type))):
        uri = write(tmp_path / str(number), stored, stable, version)
        for library in (lancetable, lance):
            case.create(library, uri)
            # Without fragments there is nothing to search; documents without values determine no type.
            check(uri, case, values, is_used=len(stored) > 0 and case.kind != "json")


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_a_btree_of_an_older_release_names_stable_row_ids(tmp_path: Path, version: str) -> None:
    case = next(case for case in CASES if case.name == "BTREE int64")
    values = case.values(ROWS)
    ds = lancetable.dataset(write(tmp_path / "t.lance", values, True, version))
    name, writer = writer_of(ds)
    kind = kind_named("BTREE")
    details = kind.build(writer, field_of(ds), tables.batches_of(ds, "_rowid"), case.parameters)
    covered = [fragment.fragment_id for fragment in ds.get_fragments()]
    entry = tables.entry_of(ds, name, 0, covered, writer, (kind.type_url, details.SerializeToString()))
    ds = tables.commit(ds, entry)
    check(ds.uri, case, values)
    ds.update({"id": "id + 1000"}, where="id % 5 = 1")  # moves rows to a fragment that the index covers as well
    assert {*range(4)} == {*ds.describe_indices()[0].segments[0].fragment_ids} | {3}
    check(ds.uri, case, values)
