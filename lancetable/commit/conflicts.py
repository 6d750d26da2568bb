"""Which transactions may follow each other: one table, read like the format's own.

A row is the transaction being committed, a column one that was committed since it was read. A pair that is not in the
table, an operation nobody here knows, and a transaction that cannot be read all count as a conflict.

    ok   compatible: ours is built on top of theirs
    R    retryable: the operation has to run again on the newer version
    X    incompatible: running it again would not help, or would undo theirs
    else the name of a function below that looks at the two operations

Source: the conflict matrix of the format's transaction document; every cell was also observed with pylance 14.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any

from lancetable.format import transaction as tx
from lancetable.format.transaction import Operation

if TYPE_CHECKING:
    from lancetable.format.fragment import Fragment

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


@dataclass(frozen=True, slots=True)
class Context:
    """What is known beyond the two transactions: for which of our fragments the changed rows are known."""

    known_rows: frozenset[int] = frozenset()


class Kind(Enum):
    """A row or column of the table. Some operations have several, by what they do."""

    APPEND = "Append"
    OVERWRITE = "Overwrite"
    DELETE = "Delete"
    UPDATE_ROWS = "UpdateRows"
    UPDATE_COLUMNS = "UpdateCols"
    MERGE = "Merge"
    PROJECT = "Project"
    PROJECT_PRESERVING = "ProjectPres"
    RESTORE = "Restore"
    CONFIG = "Config"  # table config, table metadata
    SCHEMA_CONFIG = "SchemaConfig"  # schema metadata, field metadata
    DATA_REPLACEMENT = "DataRepl"
    REWRITE = "Rewrite"
    CREATE_INDEX = "CreateIndex"
    RESERVE = "Reserve"
    UPDATE_BASES = "UpdateBases"
    CLONE = "Clone"
    MEM_WAL = "MemWal"
    DATA_OVERLAY = "DataOverlay"


_TABLE = """
ours \\ theirs Append Overwrite  Delete      UpdateRows    UpdateCols   Merge      Project ProjectPres Restore Config        SchemaConfig DataRepl       Rewrite       CreateIndex   Reserve UpdateBases Clone MemWal    DataOverlay
Append         ok     X          ok          ok            ok           append     R       ok          X       ok            ok           ok             ok            ok            ok      ok          ok    X         ok
Overwrite      ok     overwrites ok          ok            ok           ok         ok      ok          ok      overwrite_cfg ok           ok             ok            ok            ok      ok          ok    X         ok
Delete         ok     X          rows        rows          rows         R          ok      ok          X       ok            ok           fragments      fragments     ok            ok      ok          ok    X         ok
UpdateRows     keyed  X          rows        updates       rows         R          R       ok          X       ok            ok           fragments      fragments     ok            ok      ok          ok    shards    fragments
UpdateCols     keyed  X          fragments   fragments     fragments    R          R       rewritten   X       ok            ok           fragments      fragments     ok            ok      ok          ok    shards    fragments
Merge          R      X          R           R             R            R          X       X           X       ok            R            R              R             mem_wal_index ok      ok          ok    X         R
Project        R      X          ok          R             R            R          R       R           X       ok            ok           R              ok            ok            ok      ok          ok    X         R
ProjectPres    ok     X          ok          ok            ok           R          R       R           X       ok            ok           ok             ok            ok            ok      ok          ok    X         ok
Restore        ok     ok         ok          ok            ok           ok         ok      ok          ok      ok            X            ok             ok            ok            ok      ok          ok    X         ok
Config         ok     config_ow  ok          ok            ok           ok         ok      ok          ok      config_keys   ok           ok             ok            ok            ok      ok          ok    ok        ok
SchemaConfig   ok     X          ok          ok            ok           R          ok      ok          X       ok            schema_keys  ok             ok            ok            ok      ok          ok    ok        ok
DataRepl       ok     X          replaced_d  replaced_u    replaced_u   R          R       replaced_p  X       ok            ok           same_columns   fragments     index_fields  ok      ok          ok    X         ok
Rewrite        ok     X          fragments   fragments     fragments    R          ok      ok          X       ok            ok           fragments      fragments     rewrite_index ok      ok          ok    ok        fragments
CreateIndex    ok     X          ok          ok            index_update mem_wal_new ok     ok          X       ok            ok           index_fields   index_rewrite index_names   ok      ok          ok    mem_wal_x ok
Reserve        ok     X          ok          ok            ok           ok         ok      ok          X       ok            ok           ok             ok            ok            ok      ok          ok    ok        ok
UpdateBases    ok     ok         ok          ok            ok           ok         ok      ok          ok      ok            ok           ok             ok            ok            ok      bases       ok    ok        ok
MemWal         X      X          X           shards        shards       X          X       X           X       ok            ok           X              ok            ok            ok      ok          X     same_shards X
DataOverlay    ok     X          overlaid    fragments     fragments    R          R       ok          X       ok            ok           ok             fragments     ok            ok      ok          ok    X         ok
"""


def check(ours: Operation, theirs: Operation | None, context: Context) -> Verdict:
    """How `ours`, about to be committed, goes together with `theirs`, committed since `ours` was read.

    `theirs` is None for a version whose transaction is missing.
    """
    if theirs is None:
        return Verdict(X, "its transaction is missing, so nobody can tell what it changed")
    worst = Verdict(OK)
    for mine in kinds(ours):
        for other in kinds(theirs):
            rule = RULES.get((mine, other))
            if rule is None:
                return Verdict(X, "this combination of operations is not known to be safe")
            verdict = _worded(rule, mine, other) if isinstance(rule, Severity) else rule(ours, theirs, context)
            if verdict.severity > worst.severity:
                worst = verdict
    if not kinds(ours) or not kinds(theirs):
        return Verdict(X, "an operation is not known to this release")
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
