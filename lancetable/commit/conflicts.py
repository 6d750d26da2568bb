"""Conflict rules for pairs of transactions: one table, arranged like the table of the format specification.

A row is the pending transaction, a column a transaction committed after the read version of the pending one. A pair
without an entry, an unknown operation and an unreadable transaction all count as a conflict.

    ok   compatible: the pending transaction is applied on top of the committed one
    R    retryable: the operation must run again on the newer version
    X    incompatible: running it again would not help, or would undo the committed transaction
    F    retryable if both change the same fragment
    else the name of a condition in _CONDITIONS, a function of both operations

Source: the conflict matrix of the format's transaction document. Every cell was verified with pylance 14.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from lancetable.format import transaction as tx
from lancetable.format.index import covered_fragments
from lancetable.format.transaction import Operation
from lancetable.proto import transaction_pb2
from lancetable.table.fragment_reuse_entry import INDEX_NAME

if TYPE_CHECKING:
    from lancetable.format.fragment import Fragment
    from lancetable.format.index import IndexMetadata


class Severity(IntEnum):
    """Severity of a conflict between two transactions, in ascending order."""

    COMPATIBLE = 0
    REBASABLE = 1
    RETRYABLE = 2
    INCOMPATIBLE = 3


OK, REBASE, R, X = Severity.COMPATIBLE, Severity.REBASABLE, Severity.RETRYABLE, Severity.INCOMPATIBLE


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of one conflict check. `fragments` are the ids of fragments that both change; `reason` is for messages."""

    severity: Severity
    reason: str = ""
    fragments: tuple[int, ...] = ()


_COMPATIBLE = Verdict(OK)


@dataclass(frozen=True, slots=True)
class Context:
    """Facts about the pending transaction that are not part of it.

    `known_rows` are the ids of fragments whose newly deleted rows are known. `inserts_keys` is True if an Update
    inserts rows because no existing row had their keys. `related_fields` returns ids of fields with those of their
    ancestors and descendants: an index of a list names the list, a data file only the values in it. `changed_columns`
    returns the fields that some fragments store in other files than at the read version, with the fragment ids.
    """

    known_rows: frozenset[int] = frozenset()
    inserts_keys: bool = False
    related_fields: Callable[[Iterable[int]], set[int]] = set
    changed_columns: Callable[[Iterable[Fragment]], Mapping[frozenset[int], Sequence[int]]] = lambda fragments: {}


# Rows and columns of the table. Some operations have several kinds.
KINDS = (
    *("Append", "Overwrite", "Delete", "UpdateRows", "UpdateCols", "Merge", "Project", "ProjPres", "Restore"),
    *("Config", "SchemaConf", "DataRepl", "Rewrite", "CreateIndex", "Reserve", "UpdateBases", "Clone", "MemWal"),
    "DataOverlay",
)
# Short names of operations in the table.
_SHORT_NAMES = {"DataReplacement": "DataRepl", "ReserveFragments": "Reserve", "UpdateMemWalState": "MemWal"}

_TABLE = """
pending     Apnd  Ovwr  Del  UpdR  UpdC  Merge Proj ProjP Rest Conf  SConf Repl  Rewr  Index Resv Bases Clone Wal   Ovly
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
CreateIndex ok    X     ok   ok    ixupd ixmrg ok   ok    X    ok    ok    ixcol ixfrg names ok   ok    ok    X     ok
Reserve     ok    X     ok   ok    ok    ok    ok   ok    X    ok    ok    ok    ok    ok    ok   ok    ok    ok    ok
UpdateBases ok    ok    ok   ok    ok    ok    ok   ok    ok   ok    ok    ok    ok    ok    ok   bases ok    ok    ok
MemWal      X     X     X    shard shard X     X    X     X    ok    ok    X     ok    ok    ok   ok    X     shard X
DataOverlay ok    X     lost F     F     R     R    ok    X    ok    ok    ok    F     ok    ok   ok    ok    X     ok
"""


def check(pending: Operation, committed: Operation | None, context: Context) -> Verdict:
    """Check whether the pending operation may follow a committed one, and return the most severe verdict.

    `committed` is an operation committed after the read version of `pending`, or None if its transaction is missing.
    """
    if committed is None:
        return Verdict(X, "its transaction cannot be read, so its changes are unknown")
    if not kinds(pending) or not kinds(committed):
        return Verdict(X, "one of the operations is unknown to this release")
    worst = _COMPATIBLE
    for mine in kinds(pending):
        for other in kinds(committed):
            rule = RULES.get((mine, other))
            if rule is None:
                return Verdict(X, "there is no rule for this pair of operations")
            verdict = rule if isinstance(rule, Verdict) else rule(pending, committed, context)
            if verdict.severity > worst.severity:
                worst = verdict
    return worst


def kinds(operation: Operation) -> tuple[str, ...]:
    """Return the rows and columns of an operation in the table, () for an unknown operation."""
    if isinstance(operation, tx.Update):
        return ("UpdateCols" if operation.mode is tx.UpdateMode.REWRITE_COLUMNS else "UpdateRows",)
    if isinstance(operation, tx.Project):
        return ("ProjPres" if operation.preserves_nullability else "Project",)
    if isinstance(operation, tx.UpdateConfig):
        changes_schema = operation.schema_metadata is not None or bool(operation.field_metadata)
        changes_config = operation.config is not None or operation.table_metadata is not None or not changes_schema
        return ("Config",) * changes_config + ("SchemaConf",) * changes_schema
    name = type(operation).__name__
    kind = _SHORT_NAMES.get(name, name)
    return (kind,) if kind in KINDS else ()


def describe(operation: Operation | None) -> str:
    """Return the name of an operation for messages."""
    return "an unreadable transaction" if operation is None else type(operation).__name__


# --- fragments of an operation ---------------------------------------------------------------------------------------


def updated_fragments(operation: Operation) -> dict[int, Fragment]:
    """Return the new records of the fragments that a Delete or Update changes, by id."""
    if isinstance(operation, tx.Delete | tx.Update):
        return {fragment.id: fragment for fragment in operation.updated_fragments}
    return {}


def removed_fragments(operation: Operation) -> frozenset[int]:
    """Return the ids of the fragments that the operation removes."""
    if isinstance(operation, tx.Delete):
        return frozenset(operation.deleted_fragment_ids)
    if isinstance(operation, tx.Update):
        return frozenset(operation.removed_fragment_ids)
    if isinstance(operation, tx.Rewrite):
        return frozenset(fragment.id for group in operation.groups for fragment in group.old_fragments)
    return frozenset()


def touched_fragments(operation: Operation) -> frozenset[int]:
    """Return the ids of all fragments of the read version that the operation changes or removes."""
    if isinstance(operation, tx.DataReplacement):
        return frozenset(replacement.fragment_id for replacement in operation.replacements)
    if isinstance(operation, tx.DataOverlay):
        return frozenset(group.fragment_id for group in operation.groups)
    return removed_fragments(operation) | updated_fragments(operation).keys()


# --- conditions ------------------------------------------------------------------------------------------------------

Condition = Callable[[Any, Any, Context], Verdict]


def _conflict_if(fragments: Iterable[int], reason: str, severity: Severity = R) -> Verdict:
    """Return a conflict on these fragments, or the verdict COMPATIBLE if there are none."""
    ids = tuple(sorted(fragments))
    return Verdict(severity, reason, ids) if ids else _COMPATIBLE


def _same_fragments(pending: Operation, committed: Operation, context: Context) -> Verdict:
    return _conflict_if(touched_fragments(pending) & touched_fragments(committed), "both change the same fragments")


def _deleted_rows(pending: tx.Delete | tx.Update, committed: tx.Delete | tx.Update, context: Context) -> Verdict:
    common = touched_fragments(pending) & touched_fragments(committed)
    mine, other = updated_fragments(pending), updated_fragments(committed)
    severity = R
    if common & removed_fragments(committed):
        reason = "a fragment that this operation changes was removed"
    elif common & removed_fragments(pending):
        reason = "a fragment that this operation removes was changed"
    elif not common <= context.known_rows:
        reason = "both change the same fragments, and the rows that this one changes are unknown"
    elif any(mine[fragment_id].files != other[fragment_id].files for fragment_id in common):
        reason = "the data files of a fragment that this operation changes were replaced"
    else:
        severity, reason = REBASE, "both delete rows of the same fragments"
    return _conflict_if(common, reason, severity)


def _concurrent_updates(pending: tx.Update, committed: tx.Update, context: Context) -> Verdict:
    unknown = context.inserts_keys and bool(committed.new_fragments)
    if unknown or not _keys_disjoint(pending.inserted_rows, committed.inserted_rows):
        return Verdict(R, "both may insert rows with the same keys")
    return _deleted_rows(pending, committed, context)


def _keys_disjoint(pending: bytes | None, committed: bytes | None) -> bool:
    """Return True if two filters of inserted keys are certainly disjoint. None means that no keys were inserted."""
    if pending is None or committed is None:
        return pending is committed
    mine = transaction_pb2.Transaction.KeyExistenceFilter.FromString(pending)
    other = transaction_pb2.Transaction.KeyExistenceFilter.FromString(committed)
    if mine.field_ids != other.field_ids or not mine.HasField("exact") or not other.HasField("exact"):
        return False
    return not set(mine.exact.key_hashes) & set(other.exact.key_hashes)


def _inserted_keys(pending: tx.Update, committed: Operation, context: Context) -> Verdict:
    if pending.inserted_rows is None and not context.inserts_keys:
        return _COMPATIBLE
    return Verdict(R, "rows were appended that may have the same keys as rows that this operation inserts")


def _added_columns(pending: tx.Append, committed: tx.Merge, context: Context) -> Verdict:
    if committed.preserves_nullability:
        return _COMPATIBLE
    return Verdict(R, "columns were added that may be non-nullable, so the appended rows may have to provide them")


def _overwrites(pending: tx.Overwrite, committed: tx.Overwrite, context: Context) -> Verdict:
    clash = pending.config_upsert.keys() & committed.config_upsert.keys()
    if clash:
        return Verdict(X, f"both set the config keys {sorted(clash)}")
    return Verdict(R, "the table was overwritten")


def _overwrite_config(pending: Operation, committed: Operation, context: Context) -> Verdict:
    clash = _config_keys_of(pending) & _config_keys_of(committed)
    return Verdict(X, f"both change the config keys {sorted(clash)}") if clash else _COMPATIBLE


def _config_keys_of(operation: Operation) -> frozenset[str]:
    if isinstance(operation, tx.Overwrite):
        return frozenset(operation.config_upsert)
    return _keys_of(operation.config) if isinstance(operation, tx.UpdateConfig) else frozenset()


def _config_keys(pending: tx.UpdateConfig, committed: tx.UpdateConfig, context: Context) -> Verdict:
    for mine, other in (
        (pending.config, committed.config),
        (pending.table_metadata, committed.table_metadata),
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


def _schema_keys(pending: tx.UpdateConfig, committed: tx.UpdateConfig, context: Context) -> Verdict:
    if pending.schema_metadata is not None and committed.schema_metadata is not None:
        return Verdict(X, "both change the schema metadata")
    clash = pending.field_metadata.keys() & committed.field_metadata.keys()
    return Verdict(X, f"both change the metadata of fields {sorted(clash)}") if clash else _COMPATIBLE


def _dropped(field_ids: set[int], project: tx.Project, change: str, severity: Severity) -> Verdict:
    dropped = sorted(field_ids - project.schema.by_id.keys())
    reason = f"fields {dropped}, which this one {change}, were dropped"
    return Verdict(severity, reason) if dropped else _COMPATIBLE


def _removed(pending: Operation, committed: Operation, change: str, severity: Severity) -> Verdict:
    removed = touched_fragments(pending) & removed_fragments(committed)
    return _conflict_if(removed, f"fragments that this {change}", severity)


def _replaced_update(pending: tx.DataReplacement, committed: tx.Update, context: Context) -> Verdict:
    removed = _removed(pending, committed, "operation changes were removed", X)
    return _same_fragments(pending, committed, context) if removed is _COMPATIBLE else removed


def _replaced_fields(operation: tx.DataReplacement) -> set[int]:
    return {field_id for replacement in operation.replacements for field_id in replacement.new_file.fields}


def _same_columns(pending: tx.DataReplacement, committed: tx.DataReplacement, context: Context) -> Verdict:
    replaced = {replacement.fragment_id: set(replacement.new_file.fields) for replacement in committed.replacements}
    common = (
        replacement.fragment_id
        for replacement in pending.replacements
        if not replaced.get(replacement.fragment_id, set()).isdisjoint(replacement.new_file.fields)
    )
    return _conflict_if(common, "both replace the same columns of the same fragments")


def _index_fields(pending: Operation, committed: Operation, context: Context) -> Verdict:
    created, replacement = _index_first(pending, committed)
    indexed = {field_id for index in created.new_indices for field_id in index.fields}
    clash = indexed & context.related_fields(_replaced_fields(replacement))
    return Verdict(R, f"fields {sorted(clash)} are replaced by one and indexed by the other") if clash else _COMPATIBLE


def _index_first(pending: Operation, committed: Operation) -> tuple[tx.CreateIndex, Any]:
    """Return the CreateIndex of a pair of operations, then the other operation."""
    created, other = (pending, committed) if isinstance(pending, tx.CreateIndex) else (committed, pending)
    assert isinstance(created, tx.CreateIndex)
    return created, other


def _index_rewrite(pending: Operation, committed: Operation, context: Context) -> Verdict:
    created, rewrite = _index_first(pending, committed)
    rewritten = removed_fragments(rewrite)
    for index in created.new_indices:
        covered = _covered(index)
        common = rewritten if covered is None else rewritten & covered
        if common:
            return _conflict_if(common, f"index {index.name!r} covers fragments that were rewritten")
    return _COMPATIBLE


def _index_update(pending: tx.CreateIndex, committed: tx.Update, context: Context) -> Verdict:
    modified = context.related_fields(committed.fields_modified)
    updated = frozenset(updated_fragments(committed))
    for index in pending.new_indices:
        covered = _covered(index)
        if modified & set(index.fields) and (covered is None or updated & covered):
            return Verdict(REBASE, f"values that index {index.name!r} covers were changed", tuple(sorted(updated)))
    return _COMPATIBLE


def _index_merge(pending: tx.CreateIndex, committed: tx.Merge, context: Context) -> Verdict:
    for field_ids, fragment_ids in context.changed_columns(committed.fragments).items():
        changed = context.related_fields(field_ids)
        for index in pending.new_indices:
            covered = _covered(index)
            common = set(fragment_ids) if covered is None else covered.intersection(fragment_ids)
            if common and not changed.isdisjoint(index.fields):
                return _conflict_if(common, f"values that index {index.name!r} covers were replaced")
    return _mem_wal_index(pending, committed, context)


def _covered(index: IndexMetadata) -> frozenset[int] | None:
    """Return the ids of the fragments that an index covers, None if the index does not record them."""
    covered = covered_fragments(index.fragment_bitmap, index.name)
    return None if covered is None else frozenset(covered)


def _index_names(pending: tx.CreateIndex, committed: tx.CreateIndex, context: Context) -> Verdict:
    clash = _index_names_of(pending) & _index_names_of(committed)
    if clash:
        return Verdict(R, f"both change the index {sorted(clash)[0]!r}")
    if committed.new_indices and any(index.name == INDEX_NAME for index in pending.removed_indices):
        return Verdict(R, f"a new segment may need {INDEX_NAME!r}, which this operation removes")
    return _COMPATIBLE


def _index_names_of(operation: tx.CreateIndex) -> set[str]:
    return {index.name for index in (*operation.new_indices, *operation.removed_indices)}


_MEM_WAL_INDEX = "__lance_mem_wal"


def _mem_wal_index(pending: Operation, committed: Operation, context: Context) -> Verdict:
    created, _ = _index_first(pending, committed)
    return Verdict(R, "the MemWAL index was changed") if _MEM_WAL_INDEX in _index_names_of(created) else _COMPATIBLE


def _shards(
    pending: tx.Update | tx.UpdateMemWalState, committed: tx.Update | tx.UpdateMemWalState, context: Context
) -> Verdict:
    # Of two state changes, running the second one again cannot succeed.
    severity = X if isinstance(pending, tx.UpdateMemWalState) and isinstance(committed, tx.UpdateMemWalState) else R
    common = _shard_ids(pending) & _shard_ids(committed)
    return Verdict(severity, "both compact the same MemWAL shard") if common else _COMPATIBLE


def _shard_ids(operation: tx.Update | tx.UpdateMemWalState) -> set[bytes]:
    kind = transaction_pb2.Transaction
    if isinstance(operation, tx.UpdateMemWalState):
        tables = list(kind.UpdateMemWalState.FromString(operation.raw).compacted_sstables)
    else:
        tables = [kind.CompactedSsTable.FromString(raw) for raw in operation.compacted_sstables]
    return {table.shard_id.uuid for table in tables}


def _bases(pending: tx.UpdateBases, committed: tx.UpdateBases, context: Context) -> Verdict:
    for mine in pending.new_bases:
        for other in committed.new_bases:
            if (mine.id and mine.id == other.id) or (mine.name and mine.name == other.name) or mine.path == other.path:
                return Verdict(X, f"both add the base path {mine.path!r}")
    return _COMPATIBLE


_CONDITIONS: Mapping[str, Condition] = {
    "again": _overwrites,
    "bases": _bases,
    "ckeys": _config_keys,
    "cols": lambda pending, committed, _: _dropped(set(pending.fields_modified), committed, "rewrites", R),
    "F": _same_fragments,
    "gone": lambda pending, committed, _: _removed(pending, committed, "operation changes were deleted", X),
    "ixcol": _index_fields,
    "ixfrg": _index_rewrite,
    "ixmrg": _index_merge,
    "ixupd": _index_update,
    "kept": lambda pending, committed, _: _dropped(_replaced_fields(pending), committed, "replaces", X),
    "keyed": _inserted_keys,
    "lost": lambda pending, committed, _: _removed(pending, committed, "one overlays were deleted", R),
    "moved": _replaced_update,
    "mwidx": _mem_wal_index,
    "names": _index_names,
    "nulls": _added_columns,
    "okeys": _overwrite_config,
    "rows": _deleted_rows,
    "same": _same_columns,
    "shard": _shards,
    "skeys": _schema_keys,
    "upds": _concurrent_updates,
}
_SEVERITIES: Mapping[str, Severity] = {"ok": OK, "R": R, "X": X}


def _parse_table(text: str) -> dict[tuple[str, str], Verdict | Condition]:
    rules: dict[tuple[str, str], Verdict | Condition] = {}
    for line in text.strip().splitlines()[1:]:
        name, *cells = line.split()
        assert name in KINDS, f"unknown row {name} of the conflict table"
        for column, cell in zip(KINDS, cells, strict=True):
            severity = _SEVERITIES.get(cell)
            reason = "" if severity is OK else f"{name} cannot follow {column}"
            rules[name, column] = _CONDITIONS[cell] if severity is None else Verdict(severity, reason)
    return rules


RULES: Mapping[tuple[str, str], Verdict | Condition] = _parse_table(_TABLE)
