"""Bugs of commit protocols, planted as patches to the library. The simulator must find each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

from lancetable.commit import commit_loop, manifest_draft, publish, rebase
from lancetable.commit.cleanup import cleanup_plan
from lancetable.commit.conflicts import Severity, Verdict, check
from lancetable.format.manifest_naming import ManifestLocation, is_detached, manifest_path
from lancetable.handlers import base as handlers_base
from lancetable.handlers import conditional_put, external_manifest
from lancetable.store.base import PutOutcome
from lancetable.table import transactions

__all__ = ["PLANTED"]

Patch = Callable[[], contextlib.AbstractContextManager[Any]]


def replacing(owner: Any, name: str, make: Callable[[Any], Any]) -> Patch:
    """Return a patch that replaces an attribute with the result of `make` for its old value."""

    def patch() -> Any:
        return mock.patch.object(owner, name, make(getattr(owner, name)))

    return patch


def combined(*patches: Patch) -> Patch:
    """Return a patch that applies several patches."""

    @contextlib.contextmanager
    def patch() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch())
            yield

    return patch


def check_then_put(real: Any) -> Any:
    """Check whether the manifest exists, then put it: not atomic."""

    def commit(self: Any, store: Any, base: str, version: int, naming: Any, data: bytes, **options: Any) -> PutOutcome:
        path = manifest_path(base, version, naming)
        if store.find(path) is not None:
            return PutOutcome.LOST
        store.put(path, data)
        return PutOutcome.WON

    return commit


def taken_means_won(real: Any) -> Any:
    """Treat a lost race as won."""

    def commit(self: Any, *arguments: Any, **options: Any) -> PutOutcome:
        outcome: PutOutcome = real(self, *arguments, **options)
        return PutOutcome.WON if outcome is PutOutcome.LOST else outcome

    return commit


def ignore_own_transaction(real: Any) -> Any:
    """Never find the own transaction in the history."""

    def read_since(*arguments: Any) -> Any:
        return [(file, theirs and replace(theirs, uuid="another writer")) for file, theirs in real(*arguments)]

    return read_since


def check_conflicts_once(real: Any) -> Any:
    """Check conflicts only before the first lost race."""

    def judge(self: Any, theirs: Any, version: Any) -> None:
        if self._written_transaction is None:
            real(self, theirs, version)

    return judge


def check_newest_only(real: Any) -> Any:
    """Check conflicts with the newest version only."""

    def judge(self: Any, theirs: Any, version: Any) -> None:
        if version.handler.locate(version.store, version.base, version.version + 1) is None:
            real(self, theirs, version)

    return judge


def missing_is_compatible(real: Any) -> Any:
    """Treat a missing transaction as compatible."""

    def judged(ours: Any, theirs: Any, context: Any) -> Verdict:
        return Verdict(Severity.COMPATIBLE) if theirs is None else check(ours, theirs, context)

    return judged


def keep_fragment_ids(real: Any) -> Any:
    """Keep the fragment ids of the first attempt in later attempts."""
    given: dict[str, int] = {}

    def number(manifest: Any, fragments: Any) -> None:
        fragments = list(fragments)
        new = [fragment for fragment in fragments if not fragment.id]
        real(manifest, fragments)
        for fragment in new:
            fragment.id = given.setdefault(fragment.files[0].path, fragment.id)

    return number


def keep_row_ids(real: Any) -> Any:
    """Keep the row ids of the first attempt in later attempts."""
    given: dict[str, int] = {}

    def assign(manifest: Any, fragments: Any) -> Any:
        fragments = list(fragments)
        if fragments and fragments[0].files:
            manifest.next_row_id = given.setdefault(fragments[0].files[0].path, manifest.next_row_id)
        return real(manifest, fragments)

    return assign


def drop_concurrent_deletions(real: Any) -> Any:
    """Write the deletion vector of the read version, without the deletions that were committed since."""

    def delete_rows(version: Any, fragment: Any, rows: Any, *arguments: Any, **options: Any) -> Any:
        return real.delete_rows(version, replace(fragment, deletion_file=None), rows, *arguments, **options)

    return SimpleNamespace(read=real.read, EMPTY=real.EMPTY, delete_rows=delete_rows)


def publish_before_decision(real: Any) -> Any:
    """Write the final manifest before the external store decides."""

    def commit(self: Any, store: Any, base: str, version: int, naming: Any, data: bytes, **options: Any) -> PutOutcome:
        final = manifest_path(base, version, naming)
        if not is_detached(version):
            self._put_final(store, base, final, data)
        outcome: PutOutcome = real(self, store, base, version, naming, data, **options)
        return outcome

    return commit


def return_staged_paths(real: Any) -> Any:
    """Return the staged manifest of a row without completing the commit."""

    def finished(self: Any, store: Any, base: str, row: Any, **options: Any) -> ManifestLocation:
        return ManifestLocation(row.version, row.path, row.size_bytes, self._final_path(base, row)[1])

    return finished


PLANTED: dict[str, Patch] = {
    "create by exists and put": replacing(conditional_put.ConditionalPutHandler, "commit", check_then_put),
    "every taken version counts as lost": combined(
        replacing(handlers_base, "outcome_by_content", lambda real: lambda *_: PutOutcome.LOST),
        replacing(commit_loop, "outcome_by_content", lambda real: lambda *_: PutOutcome.LOST),
        replacing(publish.SerializedManifest, "_outcome_by_transaction", lambda real: lambda *_: PutOutcome.LOST),
        replacing(transactions, "read_since", ignore_own_transaction),
    ),
    "every taken version counts as won": replacing(conditional_put.ConditionalPutHandler, "commit", taken_means_won),
    "transactions are not read again after a lost race": replacing(
        commit_loop._CommitRun, "_resolve_conflict", check_conflicts_once
    ),
    "conflicts are checked with the newest version only": replacing(
        commit_loop._CommitRun, "_resolve_conflict", check_newest_only
    ),
    "a missing transaction is compatible": replacing(commit_loop, "check", missing_is_compatible),
    "fragment ids are kept after a lost race": replacing(manifest_draft, "number_fragments", keep_fragment_ids),
    "row ids are kept after a lost race": replacing(manifest_draft, "assign_row_ids", keep_row_ids),
    "deletions are merged with the wrong version": replacing(rebase, "deletion_vectors", drop_concurrent_deletions),
    "cleanup removes files of commits in progress": replacing(
        cleanup_plan, "UNVERIFIED_AGE", lambda real: timedelta(0)
    ),
    "the manifest is published before the decision": replacing(
        external_manifest.ExternalHandler, "commit", publish_before_decision
    ),
    "staged manifests are returned as final": replacing(
        external_manifest.ExternalHandler, "_resolve", return_staged_paths
    ),
}
