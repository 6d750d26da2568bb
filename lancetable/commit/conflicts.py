"""Which transactions may follow each other: one table, read like the format's own.

A row is the transaction being committed, a column one that was committed since it was read. A pair that is not in the
table, an operation nobody here knows, and a transaction that cannot be read all count as a conflict.

    ok   compatible: ours is built on top of theirs
    R    retryable: the operation has to run again on the newer version
    X    incompatible: running it again would not help, or would undo theirs
    F    retryable if both touch a fragment
    else a condition below, found under its name in _CONDITIONS, that looks at the two operations

Source: the conflict matrix of the format's transaction document; every cell was also observed with pylance 14.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any

from lancetable.commit.build import covered_fragments
from lancetable.format import transaction as tx
from lancetable.format.transaction import Operation
from lancetable.proto import transaction_pb2

if TYPE_CHECKING:
    from lancetable.format.fragment import Fragment
    from lancetable.format.index import IndexMetadata

__all__ = ["RULES", "Context", "Kind", "Severity", "Verdict", "check", "describe", "kinds"]


class Severity(IntEnum):
    """How badly two transactions go together; the worst one counts."""

    COMPATIBLE = 0
    REBASABLE = 1
    RETRYABLE = 2
    INCOMPATIBLE = 3


OK, REBASE, R, X = Severity.COMPATIBLE, Severity.REBASABLE, Severity.RETRYABLE, Severity.INCOMPATIBLE


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement on one pair; `fragments` are those that both touch, `reason` completes "because ..."."""

    severity: Severity
    reason: str = ""
    fragments: tuple[int, ...] = ()


_COMPATIBLE = Verdict(OK)


@dataclass(frozen=True, slots=True)
class Context:
    """What is known beyond the two transactions: for which of our fragments the changed rows are known, and whether our
    Update inserts rows because no row had their key."""

    known_rows: frozenset[int] = frozenset()
    inserts_keys: bool = False


class Kind(Enum):
    """A row or column of the table, columns in this order. Some operations have several, by what they do."""

    APPEND = "Append"
    OVERWRITE = "Overwrite"
    DELETE = "Delete"
    UPDATE_ROWS = "UpdateRows"
    UPDATE_COLUMNS = "UpdateCols"
    MERGE = "Merge"
    PROJECT = "Project"
    PROJECT_PRESERVING = "ProjPres"
    RESTORE = "Restore"
    CONFIG = "Config"  # table config, table metadata
    SCHEMA_CONFIG = "SchemaConf"  # schema metadata, field metadata
    DATA_REPLACEMENT = "DataRepl"
    REWRITE = "Rewrite"
    CREATE_INDEX = "CreateIndex"
    RESERVE = "Reserve"
    UPDATE_BASES = "UpdateBases"
    CLONE = "Clone"
    MEM_WAL = "MemWal"
    DATA_OVERLAY = "DataOverlay"


_TABLE = """
ours        Apnd  Ovwr  Del  UpdR  UpdC  Merge Proj ProjP Rest Conf  SConf Repl  Rewr  Index Resv Bases Clone Wal   Ovly
Append      ok    X     ok   ok    ok    nulls R    ok    X    ok    ok    ok    ok    ok    ok   ok    ok    X     ok
Overwrite   ok    again ok   ok    ok    ok    ok   ok    ok   okeys ok    ok    ok    ok    ok   ok    ok    X     ok
Delete      ok    X     rows rows  rows  R     ok   ok    X    ok    ok    F     F     ok    ok   ok    ok    X     ok
UpdateRows  keyed X     rows upds  rows  R     R    ok    X    ok    ok    F     F     ok    ok   ok    ok    shard F
UpdateCols  keyed X     F    F     F     R     R    cols  X    ok    ok    F     F     ok    ok   ok    ok    shard F
Merge       R     X     R    R     R     R     X    X     X    ok    R     R     R     mwidx ok   ok    ok    X     R
Project     R     X     ok   R     R     R     R    R     X    ok    ok    R     ok    ok    ok   ok    ok    X     R
ProjPres    ok    X     ok   ok    ok    R     R    R     X    ok    ok    ok    ok    ok    ok   ok    ok    X     ok
Restore     ok    ok    ok   ok    ok    ok    ok   ok    ok   ok    X     ok    ok    ok    ok   ok    ok    X     ok
Config      ok    okeys ok   ok    ok    ok    ok   ok    ok   ckeys ok    ok    ok    ok    ok   ok    ok    ok    ok
SchemaConf  ok    X     ok   ok    ok    R     ok   ok    X    ok    skeys ok    ok    ok    ok   ok    ok    ok    ok
DataRepl    ok    X     gone moved moved R     R    kept  X    ok    ok    same  F     ixcol ok   ok    ok    X     ok
Rewrite     ok    X     F    F     F     R     ok   ok    X    ok    ok    F     F     ixfrg ok   ok    ok    ok    F
CreateIndex ok    X     ok   ok    ixupd mwidx ok   ok    X    ok    ok    ixcol ixfrg names ok   ok    ok    X     ok
Reserve     ok    X     ok   ok    ok    ok    ok   ok    X    ok    ok    ok    ok    ok    ok   ok    ok    ok    ok
UpdateBases ok    ok    ok   ok    ok    ok    ok   ok    ok   ok    ok    ok    ok    ok    ok   bases ok    ok    ok
MemWal      X     X     X    shard shard X     X    X     X    ok    ok    X     ok    ok    ok   ok    X     twice X
DataOverlay ok    X     lost F     F     R     R    ok    X    ok    ok    ok    F     ok    ok   ok    ok    X     ok
"""


def check(ours: Operation, theirs: Operation | None, context: Context) -> Verdict:
    """How `ours`, about to be committed, goes together with `theirs`, committed since `ours` was read.

    `theirs` is None for a version whose transaction is missing.
    """
    if theirs is None:
        return Verdict(X, "its transaction cannot be read, so nobody can tell what it changed")
    if not kinds(ours) or not kinds(theirs):
        return Verdict(X, "an operation is not known to this release")
    worst = _COMPATIBLE
    for mine in kinds(ours):
        for other in kinds(theirs):
            rule = RULES.get((mine, other))
            if rule is None:
                return Verdict(X, "this combination of operations is not known to be safe")
            verdict = _worded(rule, mine, other) if isinstance(rule, Severity) else rule(ours, theirs, context)
            if verdict.severity > worst.severity:
                worst = verdict
    return worst


def kinds(operation: Operation) -> tuple[Kind, ...]:
    """The rows and columns an operation stands in; () for an unknown one."""
    if isinstance(operation, tx.Update):
        return (Kind.UPDATE_COLUMNS if _rewrites_columns(operation) else Kind.UPDATE_ROWS,)
    if isinstance(operation, tx.Project):
        return (Kind.PROJECT_PRESERVING if operation.preserves_nullability else Kind.PROJECT,)
    if isinstance(operation, tx.UpdateConfig):
        return _config_kinds(operation)
    kind = _KINDS.get(type(operation))
    return () if kind is None else (kind,)


def describe(operation: Operation | None) -> str:
    """A short name for messages."""
    return "an unreadable transaction" if operation is None else type(operation).__name__


_KINDS: Mapping[type, Kind] = {
    tx.Append: Kind.APPEND,
    tx.Overwrite: Kind.OVERWRITE,
    tx.Delete: Kind.DELETE,
    tx.Merge: Kind.MERGE,
    tx.Restore: Kind.RESTORE,
    tx.DataReplacement: Kind.DATA_REPLACEMENT,
    tx.Rewrite: Kind.REWRITE,
    tx.CreateIndex: Kind.CREATE_INDEX,
    tx.ReserveFragments: Kind.RESERVE,
    tx.UpdateBases: Kind.UPDATE_BASES,
    tx.Clone: Kind.CLONE,
    tx.UpdateMemWalState: Kind.MEM_WAL,
    tx.DataOverlay: Kind.DATA_OVERLAY,
}


def _rewrites_columns(update: tx.Update) -> bool:
    return update.mode is tx.UpdateMode.REWRITE_COLUMNS


def _config_kinds(operation: tx.UpdateConfig) -> tuple[Kind, ...]:
    found = []
    if operation.config is not None or operation.table_metadata is not None:
        found.append(Kind.CONFIG)
    if operation.schema_metadata is not None or operation.field_metadata:
        found.append(Kind.SCHEMA_CONFIG)
    return tuple(found) or (Kind.CONFIG,)


# --- what an operation touches ---------------------------------------------------------------------------------------


def updated_fragments(operation: Operation) -> dict[int, Fragment]:
    """Fragments whose record the operation replaces, by id, as they are after it where it says so."""
    if isinstance(operation, tx.Delete | tx.Update):
        return {fragment.id: fragment for fragment in operation.updated_fragments}
    return {}


def removed_fragments(operation: Operation) -> frozenset[int]:
    """Ids of fragments that are gone after the operation."""
    if isinstance(operation, tx.Delete):
        return frozenset(operation.deleted_fragment_ids)
    if isinstance(operation, tx.Update):
        return frozenset(operation.removed_fragment_ids)
    if isinstance(operation, tx.Rewrite):
        return frozenset(fragment.id for group in operation.groups for fragment in group.old_fragments)
    return frozenset()


def touched_fragments(operation: Operation) -> frozenset[int]:
    """Ids of all fragments of the read version that the operation changes or removes."""
    if isinstance(operation, tx.DataReplacement):
        return frozenset(replacement.fragment_id for replacement in operation.replacements)
    if isinstance(operation, tx.DataOverlay):
        return frozenset(group.fragment_id for group in operation.groups)
    return removed_fragments(operation) | updated_fragments(operation).keys()


# --- conditions ------------------------------------------------------------------------------------------------------

Condition = Callable[[Any, Any, Context], Verdict]


def _fragments(ours: Operation, theirs: Operation, context: Context) -> Verdict:
    common = touched_fragments(ours) & touched_fragments(theirs)
    return Verdict(R, "both change the same fragments", tuple(sorted(common))) if common else _COMPATIBLE


def _rows(ours: tx.Delete | tx.Update, theirs: tx.Delete | tx.Update, context: Context) -> Verdict:
    common = touched_fragments(ours) & touched_fragments(theirs)
    if not common:
        return _COMPATIBLE
    fragments = tuple(sorted(common))
    if common & removed_fragments(theirs):
        return Verdict(R, "a fragment that ours changes was removed", fragments)
    if common & removed_fragments(ours):
        return Verdict(R, "a fragment that ours removes was changed", fragments)
    if not common <= context.known_rows:
        return Verdict(R, "both change the same fragments and it is not known which rows ours changes", fragments)
    mine, other = updated_fragments(ours), updated_fragments(theirs)
    if any(mine[fragment_id].files != other[fragment_id].files for fragment_id in common):
        return Verdict(R, "the data files of a fragment that ours changes were replaced", fragments)
    return Verdict(REBASE, "both delete rows of the same fragments", fragments)


def _updates(ours: tx.Update, theirs: tx.Update, context: Context) -> Verdict:
    unknown = context.inserts_keys and bool(theirs.new_fragments)
    if unknown or not _keys_disjoint(ours.inserted_rows, theirs.inserted_rows):
        return Verdict(R, "both may insert rows with the same keys")
    return _rows(ours, theirs, context)


def _keys_disjoint(ours: bytes | None, theirs: bytes | None) -> bool:
    """Whether two sets of inserted keys surely have nothing in common; None stands for none inserted by key."""
    if ours is None or theirs is None:
        return ours is theirs
    mine = transaction_pb2.Transaction.KeyExistenceFilter.FromString(ours)
    other = transaction_pb2.Transaction.KeyExistenceFilter.FromString(theirs)
    if mine.field_ids != other.field_ids or not mine.HasField("exact") or not other.HasField("exact"):
        return False
    return not set(mine.exact.key_hashes) & set(other.exact.key_hashes)


def _keyed(ours: tx.Update, theirs: Operation, context: Context) -> Verdict:
    if ours.inserted_rows is None and not context.inserts_keys:
        return _COMPATIBLE
    return Verdict(R, "rows were appended that may have the keys that ours inserts")


def _append(ours: tx.Append, theirs: tx.Merge, context: Context) -> Verdict:
    if theirs.preserves_nullability:
        return _COMPATIBLE
    return Verdict(R, "columns were added that the appended rows may have to provide")


def _overwrites(ours: tx.Overwrite, theirs: tx.Overwrite, context: Context) -> Verdict:
    clash = ours.config_upsert.keys() & theirs.config_upsert.keys()
    if clash:
        return Verdict(X, f"both set the config keys {sorted(clash)}")
    return Verdict(R, "the table was overwritten in the meantime")


def _overwrite_config(ours: Operation, theirs: Operation, context: Context) -> Verdict:
    clash = _config_keys_of(ours) & _config_keys_of(theirs)
    return Verdict(X, f"both change the config keys {sorted(clash)}") if clash else _COMPATIBLE


def _config_keys_of(operation: Operation) -> frozenset[str]:
    if isinstance(operation, tx.Overwrite):
        return frozenset(operation.config_upsert)
    return _keys_of(operation.config) if isinstance(operation, tx.UpdateConfig) else frozenset()


def _config_keys(ours: tx.UpdateConfig, theirs: tx.UpdateConfig, context: Context) -> Verdict:
    for mine, other in (
        (ours.config, theirs.config),
        (ours.table_metadata, theirs.table_metadata),
    ):
        if mine is None or other is None:
            continue
        clash = _set_keys(mine) & _keys_of(other) | _keys_of(mine) & _set_keys(other)
        if clash:
            return Verdict(X, f"both change the keys {sorted(clash)}")
        if mine.replace or other.replace:
            return Verdict(X, "one of them replaces the whole map")
    return _COMPATIBLE


def _keys_of(update: tx.UpdateMap | None) -> frozenset[str]:
    return frozenset() if update is None else frozenset(update.entries)


def _set_keys(update: tx.UpdateMap) -> frozenset[str]:
    return frozenset(key for key, value in update.entries.items() if value is not None)


def _schema_keys(ours: tx.UpdateConfig, theirs: tx.UpdateConfig, context: Context) -> Verdict:
    if ours.schema_metadata is not None and theirs.schema_metadata is not None:
        return Verdict(X, "both change the schema metadata")
    clash = ours.field_metadata.keys() & theirs.field_metadata.keys()
    return Verdict(X, f"both change the metadata of fields {sorted(clash)}") if clash else _COMPATIBLE


def _rewritten(ours: tx.Update, theirs: tx.Project, context: Context) -> Verdict:
    dropped = set(ours.fields_modified) - _field_ids(theirs)
    return Verdict(R, f"fields {sorted(dropped)}, which ours rewrites, were dropped") if dropped else _COMPATIBLE


def _field_ids(project: tx.Project) -> set[int]:
    return set(project.schema.by_id)


def _replaced_delete(ours: tx.DataReplacement, theirs: tx.Delete, context: Context) -> Verdict:
    gone = touched_fragments(ours) & removed_fragments(theirs)
    return Verdict(X, "fragments that ours replaces were deleted", tuple(sorted(gone))) if gone else _COMPATIBLE


def _replaced_update(ours: tx.DataReplacement, theirs: tx.Update, context: Context) -> Verdict:
    gone = touched_fragments(ours) & removed_fragments(theirs)
    if gone:
        return Verdict(X, "fragments that ours replaces were removed", tuple(sorted(gone)))
    return _fragments(ours, theirs, context)


def _replaced_project(ours: tx.DataReplacement, theirs: tx.Project, context: Context) -> Verdict:
    dropped = _replaced_fields(ours) - _field_ids(theirs)
    return Verdict(X, f"fields {sorted(dropped)}, which ours replaces, were dropped") if dropped else _COMPATIBLE


def _replaced_fields(operation: tx.DataReplacement) -> set[int]:
    return {field_id for replacement in operation.replacements for field_id in replacement.new_file.fields}


def _same_columns(ours: tx.DataReplacement, theirs: tx.DataReplacement, context: Context) -> Verdict:
    other = {replacement.fragment_id: set(replacement.new_file.fields) for replacement in theirs.replacements}
    clash = tuple(
        sorted(
            replacement.fragment_id
            for replacement in ours.replacements
            if other.get(replacement.fragment_id, set()) & set(replacement.new_file.fields)
        )
    )
    return Verdict(R, "both replace the same columns of the same fragments", clash) if clash else _COMPATIBLE


def _index_fields(ours: Operation, theirs: Operation, context: Context) -> Verdict:
    replacement, created = (ours, theirs) if isinstance(ours, tx.DataReplacement) else (theirs, ours)
    assert isinstance(replacement, tx.DataReplacement) and isinstance(created, tx.CreateIndex)
    indexed = {field_id for index in created.new_indices for field_id in index.fields}
    clash = indexed & _replaced_fields(replacement)
    return Verdict(R, f"fields {sorted(clash)} are replaced by one and indexed by the other") if clash else _COMPATIBLE


def _index_rewrite(ours: Operation, theirs: Operation, context: Context) -> Verdict:
    rewrite, created = (ours, theirs) if isinstance(ours, tx.Rewrite) else (theirs, ours)
    assert isinstance(created, tx.CreateIndex)
    rewritten = removed_fragments(rewrite)
    for index in created.new_indices:
        covered = _covered(index)
        common = rewritten if covered is None else rewritten & covered
        if common:
            return Verdict(R, f"index {index.name!r} covers fragments that were rewritten", tuple(sorted(common)))
    return _COMPATIBLE


def _index_update(ours: tx.CreateIndex, theirs: tx.Update, context: Context) -> Verdict:
    modified, updated = set(theirs.fields_modified), frozenset(updated_fragments(theirs))
    for index in ours.new_indices:
        covered = _covered(index)
        if modified & set(index.fields) and (covered is None or updated & covered):
            return Verdict(REBASE, f"values that index {index.name!r} covers were changed", tuple(sorted(updated)))
    return _COMPATIBLE


def _covered(index: IndexMetadata) -> frozenset[int] | None:
    """Ids of the fragments an index covers; None if it does not say."""
    covered = covered_fragments(index.fragment_bitmap, index.name)
    return None if covered is None else frozenset(covered)


def _index_names(ours: tx.CreateIndex, theirs: tx.CreateIndex, context: Context) -> Verdict:
    clash = _index_names_of(ours) & _index_names_of(theirs)
    return Verdict(R, f"both change the index {sorted(clash)[0]!r}") if clash else _COMPATIBLE


def _index_names_of(operation: tx.CreateIndex) -> set[str]:
    return {index.name for index in (*operation.new_indices, *operation.removed_indices)}


_MEM_WAL_INDEX = "__lance_mem_wal"


def _mem_wal_index(ours: Operation, theirs: Operation, context: Context) -> Verdict:
    created = ours if isinstance(ours, tx.CreateIndex) else theirs
    assert isinstance(created, tx.CreateIndex)
    return Verdict(R, "the MemWAL index was changed") if _MEM_WAL_INDEX in _index_names_of(created) else _COMPATIBLE


def _shards(ours: tx.Update | tx.UpdateMemWalState, theirs: tx.Update | tx.UpdateMemWalState, _: Context) -> Verdict:
    common = _shard_ids(ours) & _shard_ids(theirs)
    return Verdict(R, "both compact the same MemWAL shard") if common else _COMPATIBLE


def _same_shards(ours: tx.UpdateMemWalState, theirs: tx.UpdateMemWalState, context: Context) -> Verdict:
    common = _shard_ids(ours) & _shard_ids(theirs)
    return Verdict(X, "both compact the same MemWAL shard") if common else _COMPATIBLE


def _shard_ids(operation: tx.Update | tx.UpdateMemWalState) -> set[bytes]:
    kind = transaction_pb2.Transaction
    if isinstance(operation, tx.UpdateMemWalState):
        tables = list(kind.UpdateMemWalState.FromString(operation.raw).compacted_sstables)
    else:
        tables = [kind.CompactedSsTable.FromString(raw) for raw in operation.compacted_sstables]
    return {table.shard_id.uuid for table in tables}


def _bases(ours: tx.UpdateBases, theirs: tx.UpdateBases, context: Context) -> Verdict:
    for mine in ours.new_bases:
        for other in theirs.new_bases:
            if (mine.id and mine.id == other.id) or (mine.name and mine.name == other.name) or mine.path == other.path:
                return Verdict(X, f"both add the base path {mine.path!r}")
    return _COMPATIBLE


def _overlaid(ours: tx.DataOverlay, theirs: tx.Delete, context: Context) -> Verdict:
    gone = touched_fragments(ours) & removed_fragments(theirs)
    return Verdict(R, "fragments that ours overlays were deleted", tuple(sorted(gone))) if gone else _COMPATIBLE


_CONDITIONS: Mapping[str, Condition] = {
    "again": _overwrites,
    "bases": _bases,
    "ckeys": _config_keys,
    "cols": _rewritten,
    "F": _fragments,
    "gone": _replaced_delete,
    "ixcol": _index_fields,
    "ixfrg": _index_rewrite,
    "ixupd": _index_update,
    "kept": _replaced_project,
    "keyed": _keyed,
    "lost": _overlaid,
    "moved": _replaced_update,
    "mwidx": _mem_wal_index,
    "names": _index_names,
    "nulls": _append,
    "okeys": _overwrite_config,
    "rows": _rows,
    "same": _same_columns,
    "shard": _shards,
    "skeys": _schema_keys,
    "twice": _same_shards,
    "upds": _updates,
}
_SEVERITIES: Mapping[str, Severity] = {"ok": OK, "R": R, "X": X}


def _worded(severity: Severity, mine: Kind, other: Kind) -> Verdict:
    if severity is OK:
        return _COMPATIBLE
    return Verdict(severity, f"{mine.value} cannot follow {other.value}")


def _parse_table(text: str) -> dict[tuple[Kind, Kind], Severity | Condition]:
    columns = list(Kind)
    rules: dict[tuple[Kind, Kind], Severity | Condition] = {}
    for line in text.strip().splitlines()[1:]:
        name, *cells = line.split()
        assert len(cells) == len(columns), f"row {name} of the conflict table has {len(cells)} cells"
        for column, cell in zip(columns, cells, strict=True):
            severity = _SEVERITIES.get(cell)
            rules[Kind(name), column] = _CONDITIONS[cell] if severity is None else severity
    return rules


RULES: Mapping[tuple[Kind, Kind], Severity | Condition] = _parse_table(_TABLE)
