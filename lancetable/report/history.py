"""History of a table: one entry for each version, from its manifest and its transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from lancetable.argument_validation import COMMIT_MESSAGE_KEY
from lancetable.errors import NotFoundError
from lancetable.report.findings import Findings
from lancetable.report.model import History, Limits, TagEntry, VersionEntry
from lancetable.table import transactions
from lancetable.table.manifest_files import ManifestFile, map_versions, read_manifest, summarize

if TYPE_CHECKING:
    from lancetable.format.manifest_naming import ManifestLocation
    from lancetable.format.transaction import Transaction
    from lancetable.ops.progress_tracker import Tracker
    from lancetable.table.version import TableVersion


def newest_locations(
    locations: Sequence[ManifestLocation], size_bytes: int, limits: Limits, findings: Findings
) -> list[ManifestLocation]:
    """Return the newest locations within the limits, oldest first. Adds a note if some are left out.

    `size_bytes` is assumed for manifests whose size the listing does not contain.
    """
    chosen: list[ManifestLocation] = []
    left = limits.manifest_bytes
    for location in islice(reversed(locations), limits.versions):
        left -= location.size_bytes or size_bytes
        if left < 0 and chosen:
            break
        chosen.append(location)
    if len(chosen) < len(locations):
        findings.notes.append(f"The history has the newest {len(chosen):,} of {len(locations):,} versions.")
    return chosen[::-1]


def read_history(
    version: TableVersion,
    locations: Sequence[ManifestLocation],
    total: int,
    tags: Sequence[TagEntry],
    findings: Findings,
    tracker: Tracker,
) -> History:
    """Read the manifests and transactions at the locations. Versions that a cleanup removes meanwhile are left out."""
    names: dict[int, list[str]] = defaultdict(list)
    for tag in tags:
        if tag.branch == version.branch:
            names[tag.version].append(tag.name)

    def read(location: ManifestLocation) -> VersionEntry | None:
        entry = _read_entry(version, location, tuple(names.get(location.version, ())), findings)
        tracker.add(num_files=1)
        return entry

    entries = map_versions(version.store, read, locations)
    return History(total, tuple(entry for entry in entries if entry is not None))


def _read_entry(
    version: TableVersion, location: ManifestLocation, tags: tuple[str, ...], findings: Findings
) -> VersionEntry | None:
    opened = location.version == version.version
    try:
        file = version.file if opened else read_manifest(version.store, location)
        summary = summarize(file.manifest)
    except NotFoundError:
        return None
    except Exception as error:
        findings.add("manifest", location.path, error)
        return VersionEntry(location.version, tags=tags, problem=str(error))
    transaction = findings.attempt("transaction", location.path, lambda: _transaction(version, file))
    return VersionEntry(
        summary.version,
        summary.timestamp,
        None if transaction is None else operation_name(transaction.operation),
        None if transaction is None else transaction.properties.get(COMMIT_MESSAGE_KEY),
        summary.total_rows,
        summary.total_deletion_file_rows,
        summary.total_fragments,
        summary.total_data_files,
        summary.total_files_size,
        tags,
    )


def _transaction(version: TableVersion, file: ManifestFile) -> Transaction | None:
    return transactions.read(version.store, version.base, file)


def operation_name(operation: object) -> str:
    """Return the kind of an operation: the name of its class, or its `name` if it has no class of its own."""
    return str(getattr(operation, "name", type(operation).__name__))
