"""The conflict table: every cell compared with the matrix of the specification in conftest, and every condition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lancetable.commit import conflicts
from lancetable.commit.conflicts import KINDS, RULES, Context, Severity, Verdict, check, kinds
from lancetable.format import transaction as tx
from lancetable.format.fragment import DataFile, Fragment
from lancetable.format.index import IndexMetadata
from lancetable.format.manifest import BasePath
from lancetable.format.schema import Schema
from lancetable.proto import transaction_pb2

LETTERS = {Severity.COMPATIBLE: "ok", Severity.REBASABLE: "ok", Severity.RETRYABLE: "R", Severity.INCOMPATIBLE: "X"}
NOTHING_KNOWN = Context()


def letter(ours: tx.Operation, theirs: tx.Operation | None, context: Context = NOTHING_KNOWN) -> str:
    return LETTERS[check(ours, theirs, context).severity]


def test_every_cell_matches_the_specification(maker: Any, cells: dict[tuple[str, str], str]) -> None:
    names = list(dict.fromkeys(name for name, _ in cells))
    same = {name: (maker.make(name, 0), maker.make(name, 0)) for name in names}
    other = {name: maker.make(name, 1) for name in names}
    lines = ["".ljust(12) + " ".join(name.ljust(11) for name in names)]
    wrong = []
    for ours in names:
        found = []
        for theirs in names:
            common, apart = letter(same[ours][0], same[theirs][1]), letter(same[ours][0], other[theirs])
            found.append("F" if (common, apart) == ("R", "ok") else common)
            if found[-1] != cells[ours, theirs] or apart not in ("ok", common):
                wrong.append(f"{ours} after {theirs}: {found[-1]}, stated {cells[ours, theirs]}")
        lines.append(ours.ljust(12) + " ".join(cell.ljust(11) for cell in found))
    print("\n".join(lines))
    assert not wrong, wrong


def test_every_operation_has_a_row_and_a_column() -> None:
    split = {"UpdateRows", "UpdateCols", "Project", "ProjPres", "Config", "SchemaConf"}
    classes = set(tx.OPERATIONS.values()) - {tx.Update, tx.Project, tx.UpdateConfig}
    names = {conflicts._SHORT_NAMES.get(each.__name__, each.__name__) for each in classes}
    assert names | split == set(KINDS) and len(set(KINDS)) == len(KINDS)
    assert {mine for mine, _ in RULES} == set(KINDS) - {"Clone"}  # a clone is always a first version


def test_misspelled_row_of_the_table_is_refused() -> None:
    with pytest.raises(AssertionError, match="Appnd"):
        conflicts._parse_table(conflicts._TABLE.replace("Append ", "Appnd  "))
    assert {theirs for _, theirs in RULES} == set(KINDS)
    assert len(RULES) == (len(KINDS) - 1) * len(KINDS)


def test_every_condition_is_used() -> None:
    used = {rule for rule in RULES.values() if not isinstance(rule, Verdict)}
    assert used == set(conflicts._CONDITIONS.values())


def test_unknown_operations_conflict(maker: Any, ours: str) -> None:
    operation = maker.make(ours)
    assert letter(operation, None) == "X"
    assert letter(operation, tx.UnknownOperation(b"")) == "X"
    assert letter(tx.UnknownOperation(b""), operation) == "X"
    assert kinds(tx.UnknownOperation(b"")) == ()


def test_disjoint_deletes_are_rebasable_only_if_rows_are_known(maker: Any) -> None:
    ours, theirs = maker.make_delete(0, 1), maker.make_delete(0, 2)
    known = Context(frozenset({0}))
    assert check(ours, theirs, known).severity is Severity.REBASABLE
    assert check(ours, theirs, known).fragments == (0,)
    assert check(ours, theirs, Context(frozenset({1}))).severity is Severity.RETRYABLE
    for mine in (ours, maker.make_updaterows(0, 1)):
        assert check(mine, maker.make_updaterows(0, 2), known).severity is Severity.REBASABLE
        assert letter(mine, maker.make_updatecols(0, 0), known) == "R"
        assert letter(mine, tx.Delete((), (0,)), known) == "R"
    assert letter(tx.Delete((), (0,)), theirs, known) == "R"


def test_append_may_follow_merge_that_preserves_nullability(maker: Any) -> None:
    merge = maker.make_merge(0, 0)
    assert letter(maker.make_append(0, 0), merge) == "R"
    assert letter(maker.make_append(0, 0), replace(merge, preserves_nullability=True)) == "ok"
    assert letter(replace(merge, preserves_nullability=True), maker.make_append(0, 0)) == "R"


def config(**entries: str | None) -> tx.UpdateMap:
    return tx.UpdateMap(dict(entries))


def test_config_keys() -> None:
    a, b, no_a = (tx.UpdateConfig(config=config(**entries)) for entries in ({"a": "1"}, {"b": "1"}, {"a": None}))
    assert (letter(a, a), letter(a, b), letter(a, no_a), letter(no_a, a)) == ("X", "ok", "X", "X")
    assert letter(no_a, no_a) == "ok"
    table = tx.UpdateConfig(table_metadata=config(a="1"))
    assert (letter(a, table), letter(table, table)) == ("ok", "X")
    assert letter(tx.UpdateConfig(config=tx.UpdateMap({}, replace=True)), b) == "X"


def test_overwrite_and_config_keys(maker: Any) -> None:
    overwrite = replace(maker.make_overwrite(0, 0), config_upsert={"a": "1"})
    update = tx.UpdateConfig(config=config(a="2"))
    assert (letter(overwrite, update), letter(update, overwrite)) == ("X", "X")
    assert letter(overwrite, tx.UpdateConfig(config=config(b="2"))) == "ok"
    assert letter(overwrite, overwrite) == "X"
    assert letter(overwrite, replace(overwrite, config_upsert={"b": "1"})) == "R"


def test_schema_and_field_metadata() -> None:
    field_1 = tx.UpdateConfig(field_metadata={1: config(a="1")})
    field_2 = tx.UpdateConfig(field_metadata={2: config(a="1")})
    schema = tx.UpdateConfig(schema_metadata=config(a="1"))
    assert (letter(field_1, field_1), letter(field_1, field_2), letter(field_1, schema)) == ("X", "ok", "ok")
    both = tx.UpdateConfig(config=config(a="1"), schema_metadata=config(a="1"))
    assert (letter(both, schema), letter(both, tx.UpdateConfig(config=config(a="1")))) == ("X", "X")
    assert letter(tx.UpdateConfig(), both) == "ok"


def test_dropped_fields(maker: Any) -> None:
    dropped = tx.Project(Schema(maker.version.schema.fields[:1]), preserves_nullability=True)
    assert letter(maker.make_updatecols(0, 0), dropped) == "R"
    assert letter(maker.make_datarepl(0, 0), dropped) == "X"


def test_data_replacement_of_removed_fragments_or_other_columns(maker: Any) -> None:
    ours = maker.make_datarepl(0, 0)
    assert letter(ours, tx.Delete((), (0,))) == "X"
    assert letter(ours, tx.Update(removed_fragment_ids=(0,))) == "X"
    left, right = (
        tx.DataReplacement((tx.DataReplacementGroup(0, DataFile("x.lance", (field,), (0,))),)) for field in (0, 1)
    )
    assert (letter(left, right), letter(left, left)) == ("ok", "R")


def index(name: str, fields: tuple[int, ...], bitmap: bytes | None) -> IndexMetadata:
    import uuid

    return IndexMetadata(uuid.uuid4(), name, fields, 1, bitmap)


def test_indices(maker: Any) -> None:
    on_s = maker.make_createindex(0, 0)
    assert letter(on_s, tx.CreateIndex((index("other", (0,), None),))) == "ok"
    assert letter(tx.CreateIndex((), on_s.new_indices), on_s) == "R"
    uncovered = tx.CreateIndex((index("x", (1,), None),))
    assert (letter(maker.make_rewrite(2, 0), uncovered), letter(uncovered, maker.make_rewrite(2, 0))) == ("R", "R")
    columns = maker.make_updatecols(0, 0)
    assert check(on_s, columns, NOTHING_KNOWN).severity is Severity.REBASABLE
    assert check(tx.CreateIndex((index("x", (0,), None),)), columns, NOTHING_KNOWN).severity is Severity.COMPATIBLE
    wal = tx.CreateIndex((index("__lance_mem_wal", (), None),))
    assert (letter(maker.make_merge(0, 0), wal), letter(wal, maker.make_merge(0, 0))) == ("R", "R")


def keys(*hashes: int, fields: tuple[int, ...] = (0,)) -> bytes:
    message = transaction_pb2.Transaction.KeyExistenceFilter(field_ids=fields)
    message.exact.SetInParent()
    message.exact.key_hashes.extend(hashes)
    return message.SerializeToString()


def test_inserted_keys() -> None:
    ours = tx.Update(inserted_rows=keys(1, 2))
    assert letter(ours, tx.Update(inserted_rows=keys(3))) == "ok"
    assert letter(ours, tx.Update(inserted_rows=keys(2, 3))) == "R"
    assert letter(ours, tx.Update(inserted_rows=keys(3, fields=(1,)))) == "R"
    assert (letter(ours, tx.Update()), letter(tx.Update(), ours)) == ("R", "R")
    assert (letter(ours, tx.Append()), letter(tx.Update(), tx.Append())) == ("R", "ok")


def test_base_paths() -> None:
    ours = tx.UpdateBases((BasePath(0, "/a", True, "n"),))
    for other, expected in (
        (BasePath(0, "/b", True), "ok"),
        (BasePath(0, "/a", True), "X"),
        (BasePath(0, "/b", True, "n"), "X"),
        (BasePath(4, "/b", True), "ok"),
    ):
        assert letter(ours, tx.UpdateBases((other,))) == expected
    assert letter(tx.UpdateBases((BasePath(4, "/a"),)), tx.UpdateBases((BasePath(4, "/b"),))) == "X"


def sstable(shard: bytes) -> bytes:
    table = transaction_pb2.Transaction.CompactedSsTable(generation=1)
    table.shard_id.uuid = shard
    return table.SerializeToString()


def test_mem_wal(maker: Any) -> None:
    state = transaction_pb2.Transaction.UpdateMemWalState()
    state.compacted_sstables.add().MergeFromString(sstable(b"a" * 16))
    wal = tx.UpdateMemWalState(state.SerializeToString())
    assert letter(wal, wal) == "X"
    assert letter(wal, tx.UpdateMemWalState(b"")) == "ok"
    same, other = (tx.Update(compacted_sstables=(sstable(shard * 16),)) for shard in (b"a", b"b"))
    assert (letter(wal, same), letter(same, wal), letter(wal, other), letter(other, wal)) == ("R", "R", "ok", "ok")
    for name, expected in (("Append", "X"), ("Overwrite", "X"), ("Restore", "X"), ("Rewrite", "ok"), ("Config", "ok")):
        assert (letter(wal, maker.make(name)), letter(maker.make(name), wal)) == (expected, expected)


def test_overlays(maker: Any) -> None:
    overlay = tx.DataOverlay((tx.OverlayGroup(0, ()),))
    assert (letter(overlay, overlay), letter(overlay, tx.Append())) == ("ok", "ok")
    assert (letter(overlay, maker.make_delete(0, 0)), letter(overlay, tx.Delete((), (0,)))) == ("ok", "R")
    assert (letter(maker.make_rewrite(0, 0), overlay), letter(maker.make_rewrite(1, 0), overlay)) == ("R", "ok")
    assert letter(tx.Append(), overlay) == "ok"


@pytest.mark.parametrize("theirs_only", [tx.Clone(True, 1, "x"), tx.ReserveFragments(1), tx.UpdateBases()])
def test_compatible_operations(maker: Any, ours: str, theirs_only: tx.Operation) -> None:
    assert letter(maker.make(ours), theirs_only) == "ok"


def test_touched_fragments_of_each_operation(maker: Any) -> None:
    assert conflicts.touched_fragments(tx.Delete((Fragment(1),), (2,))) == {1, 2}
    assert conflicts.touched_fragments(maker.make_rewrite(2, 0)) == {2}
    assert conflicts.touched_fragments(maker.make_datarepl(1, 0)) == {1}
    assert conflicts.touched_fragments(tx.Append((Fragment(0),))) == set()
