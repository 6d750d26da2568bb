"""Every pair of operations committed from the same version, by both libraries in both positions.

Outcome and resulting manifest must not depend on the committing library: `ot` means lancetable first and pylance
second, and so on. Section "observed" contains the outcomes of 25 calls of pylance 14, compared with `check` only.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyroaring
import pytest

from lancetable.commit.conflicts import Context, Severity, check
from lancetable.errors import CommitConflictError
from lancetable.format import transaction as tx
from lancetable.format.fragment import TOMBSTONE, DataFile, DeletionFile, DeletionKind, Fragment
from lancetable.format.index import IndexMetadata
from lancetable.format.schema import Schema
from lancetable.table.version import latest, open_version

sys.path.insert(0, str(Path(__file__).parent))

from pairs import Prepared, check_both_read, commit_ours, commit_theirs, copy_table, difference, outcome, state

pytestmark = pytest.mark.filterwarnings("ignore:Passing a pyarrow.Schema to Merge:DeprecationWarning")

COMMIT: dict[str, Callable[[str, Prepared], Any]] = {"o": commit_ours, "t": commit_theirs}

# A Project of pylance replaces the schema metadata together with the fields, and so reverts a change committed in
# between. A Project of lancetable keeps the change.
KEPT_BY_US = {("SchemaConf", "Project"), ("SchemaConf", "ProjPres")}


def prepared(maker: Any, name: str, fragment_id: int, row: int) -> Prepared:
    """Return an operation like `maker.make`, limited to what both libraries accept in the same form."""
    if name == "Reserve":
        return Prepared(tx.ReserveFragments(1))  # the number that pylance's compaction reserves
    if name == "Merge":
        schema = maker.version.schema.to_arrow().append(pa.field("n", pa.int64()))
        return Prepared(tx.Merge(tuple(maker.version.manifest.fragments), Schema.from_arrow(schema)))
    return Prepared(maker.make(name, fragment_id, row))


def run_pairs(
    maker: Any, cells: dict[tuple[str, str], str], second: str, directory: Path, orders: list[str], fragment_id: int
) -> list[str]:
    """Return the differences for `second` after each operation, on the same and on different fragments."""
    wrong = []
    mine = prepared(maker, second, 0, 1)
    names = list(dict.fromkeys(name for name, _ in cells))
    others = {name: prepared(maker, name, fragment_id, 2) for name in names}
    template = Path(maker.version.uri)
    for first, other in others.items():
        cell = cells[second, first]
        expected = {"F": "R" if fragment_id == 0 else "ok"}.get(cell, cell)
        reference: dict[str, Any] | None = None
        for order in orders:
            uri = str(copy_table(template, directory / f"{first}-{order}"))
            COMMIT[order[0]](uri, other)
            found = outcome(lambda uri=uri, order=order: COMMIT[order[1]](uri, mine))  # type: ignore[misc]  # mypy cannot infer such defaults
            if found != expected and cell in ("ok", "R", "X", "F") and (fragment_id == 0 or found != "ok"):
                wrong.append(f"{second} after {first}, {order}: {found} instead of {expected}")
            seen = {"outcome": found, **state(uri)}
            reference = reference or seen
            differing = difference(seen, reference)
            if (first, second) in KEPT_BY_US:
                differing = {key: value for key, value in differing.items() if "schemaMetadata" not in key}
            if differing:
                wrong.append(f"{second} after {first}, {order}: {differing}")
            if first != "UpdateBases" and second != "UpdateBases":
                check_both_read(uri)
    return wrong


def test_every_pair_in_both_mixed_orders(
    maker: Any, cells: dict[tuple[str, str], str], ours: str, tmp_path: Path
) -> None:
    assert run_pairs(maker, cells, ours, tmp_path, ["oo", "ot", "to"], 0) == []


@pytest.mark.slow
@pytest.mark.parametrize("fragment_id", [0, 1])
def test_every_pair_against_pylance_alone(
    maker: Any, cells: dict[tuple[str, str], str], ours: str, tmp_path: Path, fragment_id: int
) -> None:
    assert run_pairs(maker, cells, ours, tmp_path, ["tt", "oo", "ot", "to"], fragment_id) == []


def test_conflict_messages_contain_operations_versions_and_fragments(maker: Any, cells: Any, tmp_path: Path) -> None:
    names = list(dict.fromkeys(name for name, _ in cells))
    classes = {name: type(maker.make(name)).__name__ for name in names}
    for number, (second, first) in enumerate(cells):
        if cells[second, first] == "ok":
            continue
        uri = str(copy_table(Path(maker.version.uri), tmp_path / str(number)))
        commit_ours(uri, prepared(maker, first, 0, 2))
        with pytest.raises(CommitConflictError) as caught:
            commit_ours(uri, prepared(maker, second, 0, 1))
        error, text = caught.value, str(caught.value)
        assert (error.version, error.read_version) == (2, 1), text
        assert (error.operation, error.other_operation) == (classes[second], classes[first])
        assert f"{classes[second]} with read version 1" in text
        assert f"{classes[first]}" in text
        assert "version 2" in text
        assert ("Run the operation again on the newest version" in text) is error.retryable
        assert ("Inspect version 2" in text) is not error.retryable
        if cells[second, first] == "F":
            assert error.fragments == (0,)
            assert "fragments 0" in text
        assert latest(open_version(uri)).version == 2


# --- observed --------------------------------------------------------------------------------------------------------

# Row: operation that is committed first; column: operation on the same version that is committed second. "." commits,
# R is retryable, r is retryable and retried by the call itself, X is incompatible. Fragments 0, 1 and 2 have the ids
# 0-3, 4-7 and 8-11; column v has its own data file.
OBSERVED = """
                       0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24
append                 .  .  .  .  .  .  .  .  .  .  .  .  .  R  R  .  .  R  .  .  .  .  .  .  .
overwrite              X  R  X  X  X  X  X  X  X  X  X  X  X  X  X  X  X  X  .  .  .  X  X  X  X
delete-op-0            .  .  R  .  r  .  R  R  r  .  .  .  r  R  R  .  .  R  .  .  .  .  .  .  .
delete-op-5            .  .  .  R  .  .  .  R  .  .  r  .  .  R  R  .  .  R  .  .  .  .  .  .  .
delete-0               .  .  R  .  r  .  R  R  r  .  .  .  r  R  R  .  .  R  .  .  .  .  .  .  .
delete-1               .  .  R  .  .  r  R  R  .  r  .  .  r  R  R  .  .  R  .  .  .  .  .  .  .
delete-fragment        .  .  R  .  r  r  R  R  r  r  .  .  r  R  R  .  .  R  .  .  .  .  X  .  .
rewrite-all            .  .  R  R  r  r  R  R  r  r  r  .  r  R  R  .  .  R  .  .  .  .  R  R  R
update-0               .  .  R  .  r  .  R  R  r  .  .  .  r  R  R  .  .  R  .  .  .  .  R  .  .
update-1               .  .  R  .  .  r  R  R  .  r  .  .  r  R  R  .  .  R  .  .  .  .  R  .  .
update-5               .  .  .  R  .  .  .  R  .  .  r  .  .  R  R  .  .  R  .  .  .  .  .  R  .
merge-insert-new       .  .  .  .  .  .  .  .  .  .  .  .  .  R  R  .  .  R  .  .  .  .  .  .  .
merge-insert-0-1       .  .  R  .  r  r  R  R  r  r  .  .  r  R  R  .  .  R  .  .  .  .  R  .  .
merge                  R  .  R  R  r  r  R  R  r  r  r  r  r  R  R  R  R  R  .  .  .  R  R  R  .
add-null-column        .  .  R  R  r  r  R  R  r  r  r  r  r  R  R  R  R  R  .  .  .  R  R  R  .
drop-s                 .  .  .  .  .  .  .  .  .  .  .  .  .  X  X  R  R  X  .  .  .  .  .  .  .
rename-s               .  .  .  .  .  .  .  .  .  .  .  .  .  X  X  R  R  X  .  .  .  .  .  .  .
cast-v                 .  .  R  R  r  r  R  R  r  r  r  r  r  R  R  R  R  R  .  .  .  R  R  R  .
restore                X  .  X  X  X  X  X  X  X  X  X  X  X  X  X  X  X  X  .  .  .  X  X  X  X
config-1               .  .  .  .  .  .  .  .  .  .  .  .  .  .  .  .  .  .  .  X  .  .  .  .  .
config-2               .  .  .  .  .  .  .  .  .  .  .  .  .  .  .  .  .  .  .  .  X  .  .  .  .
schema-metadata        .  .  .  .  .  .  .  .  .  .  .  .  .  R  R  .  .  R  X  .  .  X  .  .  .
replace-0              .  .  R  .  r  r  R  R  r  r  .  .  r  R  R  .  .  R  .  .  .  .  R  .  .
replace-1              .  .  .  R  .  .  .  R  .  .  r  .  .  R  R  .  .  R  .  .  .  .  .  R  .
create-index           .  .  .  .  .  .  .  R  .  .  .  .  .  .  .  .  .  .  .  .  .  .  .  .  R
"""


def observed() -> dict[tuple[str, str], str]:
    _, *lines = (line.split() for line in OBSERVED.strip().splitlines())
    names = [line[0] for line in lines]
    return {(first, second): cell for first, *row in lines for second, cell in zip(names, row, strict=True)}


def calls() -> dict[str, tuple[tx.Operation, dict[int, set[int]]]]:
    """Return the operation of each call, and its deleted rows if pylance knows them."""
    fields = pa.schema([("id", pa.int64()), ("s", pa.string()), ("v", pa.int32())])
    schema = Schema.from_arrow(fields)
    files = (DataFile("a.lance", (0, 1), (0, 1), 2, 0), DataFile("b.lance", (2,), (0,), 2, 0))
    before = [Fragment(number, files, physical_rows=4) for number in range(3)]
    new = Fragment(0, files, physical_rows=1)

    def without(rows: list[int]) -> tuple[Fragment, ...]:
        number = rows[0] // 4
        vector = DeletionFile(DeletionKind.ARROW_ARRAY, 1, 1, len(rows))
        return (Fragment(number, files, deletion_file=vector, physical_rows=4),)

    def known(rows: list[int]) -> dict[int, set[int]]:
        return {rows[0] // 4: {row % 4 for row in rows}}

    def deleted(*rows: int) -> tuple[tx.Operation, dict[int, set[int]]]:
        return tx.Delete(without([*rows])), known([*rows])

    def updated(*rows: int) -> tuple[tx.Operation, dict[int, set[int]]]:
        return tx.Update(updated_fragments=without([*rows]), new_fragments=(new,)), known([*rows])

    def plain(operation: tx.Operation) -> tuple[tx.Operation, dict[int, set[int]]]:
        return operation, {}

    def replaced(number: int) -> tx.Operation:
        return tx.DataReplacement((tx.DataReplacementGroup(number, DataFile("c.lance", (2,), (0,), 2, 0)),))

    def config(key: str) -> tx.Operation:
        return tx.UpdateConfig(config=tx.UpdateMap({key: "1"}))

    covered = pyroaring.BitMap([0, 1, 2]).serialize()
    index = IndexMetadata(uuid.uuid4(), "id_idx", (0,), 1, covered, 0, type_url="/lance.table.BTreeIndexDetails")
    wider = Schema.from_arrow(fields.append(pa.field("n", pa.int64())))
    return {
        "append": plain(tx.Append((new,))),
        "overwrite": plain(tx.Overwrite((new,), schema)),
        "delete-op-0": plain(tx.Delete(without([0]))),
        "delete-op-5": plain(tx.Delete(without([5]))),
        "delete-0": deleted(0),
        "delete-1": deleted(1),
        "delete-fragment": plain(tx.Delete((), (0,))),
        "rewrite-all": plain(tx.Rewrite((tx.RewriteGroup(tuple(before), (Fragment(9, files, physical_rows=12),)),))),
        "update-0": updated(0),
        "update-1": updated(1),
        "update-5": updated(5),
        "merge-insert-new": plain(tx.Update(new_fragments=(new,))),
        "merge-insert-0-1": updated(0, 1),
        "merge": plain(tx.Merge(tuple(before), wider)),
        "add-null-column": plain(tx.Merge(tuple(before), wider, preserves_nullability=True)),
        "drop-s": plain(tx.Project(schema.project(["id", "v"]), preserves_nullability=True)),
        "rename-s": plain(tx.Project(schema, preserves_nullability=True)),
        "cast-v": plain(tx.Merge(tuple(before), schema, preserves_nullability=True)),
        "restore": plain(tx.Restore(1)),
        "config-1": plain(config("k1")),
        "config-2": plain(config("k2")),
        "schema-metadata": plain(tx.UpdateConfig(schema_metadata=tx.UpdateMap({"k": "1"}))),
        "replace-0": plain(replaced(0)),
        "replace-1": plain(replaced(1)),
        "create-index": plain(tx.CreateIndex((index,))),
    }


def test_observed_conflicts_of_25_pylance_calls() -> None:
    made = calls()
    lines, wrong = [], []
    for first, (other, rows) in made.items():
        taken = {"delete-op-0": {0: {0}}, "delete-op-5": {1: {1}}}.get(first, rows)  # from the deletion vectors
        line = first.ljust(20)
        for second, (mine, rows) in made.items():
            verdict = check(mine, other, Context(frozenset(rows)))
            letter = {Severity.COMPATIBLE: ".", Severity.INCOMPATIBLE: "X"}.get(verdict.severity, "R")
            if verdict.severity is Severity.REBASABLE:  # decided by the rows
                letter = "R" if any(rows[number] & taken[number] for number in rows) else "."
            if second.startswith(("delete-op", "delete-fragment")) or letter != "R":
                pass
            elif second.split("-")[0] in ("delete", "update") or second.startswith("merge-insert"):
                letter = "r"
            line += letter.rjust(3)
            if letter != observed()[first, second]:
                wrong.append(f"{second} after {first}: {letter}")
        lines.append(line)
    print("\n".join(lines))
    assert not wrong, wrong


def test_rewritten_column_leaves_a_tombstone(maker: Any) -> None:
    """Precondition of the pairs with UpdateCols."""
    update = maker.make("UpdateCols")
    assert update.updated_fragments[0].files[0].fields == (0, TOMBSTONE)
