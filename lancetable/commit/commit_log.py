"""Log records, metrics and span attributes of commits. The records have table, version, operation and counts:

flights.lance: committed version 2: Append fragments_added=1 rows_added=5000
flights.lance: committed version 3: Delete fragments_changed=1 rows_deleted=20
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sized

from lancetable import telemetry
from lancetable.commit.conflicts import describe, removed_fragments, updated_fragments
from lancetable.format import transaction as tx

logger = logging.getLogger(__name__)


def record_outcome(
    span: telemetry.NoSpan, operation: tx.Operation, outcome: str, *, attempts: int, read_version: int
) -> None:
    """Count a commit with its outcome, and set the attributes of its span."""
    name = describe(operation)
    telemetry.count("commits", "Commits by outcome", operation=name, outcome=outcome)
    telemetry.count("commit.attempts", "Attempts of commits", attempts, operation=name)
    span.set(operation=name, outcome=outcome, attempts=attempts, read_version=read_version)


def log_commit(uri: str, version: int, operation: tx.Operation, deleted: Mapping[int, Sized] | None = None) -> None:
    """Log a commit. `deleted` are the rows that the operation deletes, by fragment id, if they are known.

    Only the records of the operation are counted, so the cost does not depend on the size of the table.
    """
    name = "fragments" if isinstance(operation, tx.Append | tx.Overwrite) else "new_fragments"
    parts = operation.groups if isinstance(operation, tx.Rewrite) else (operation,)
    added = [fragment for part in parts for fragment in getattr(part, name, ())]
    counts = {
        "fragments_added": len(added),
        "fragments_changed": len(updated_fragments(operation)),
        "fragments_removed": len(removed_fragments(operation)),
        "rows_added": sum(fragment.physical_rows or 0 for fragment in added),
        "rows_deleted": sum(map(len, (deleted or {}).values())),
    }
    shown = "".join(f" {name}={count}" for name, count in counts.items() if count)
    logger.info(
        "%s: committed version %d: %s%s",
        uri,
        version,
        describe(operation),
        shown,
        extra=telemetry.fields(
            "commit.published",
            uri,
            version=version,
            operation=describe(operation),
            **{name: count for name, count in counts.items() if count},
        ),
    )
