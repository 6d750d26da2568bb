"""Mistakes that a commit protocol can be made with, as patches to the library: the simulator finds each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest import mock

from lancetable.commit import build, cleanup, loop, rebase
from lancetable.commit.conflicts import Severity, Verdict, check
from lancetable.format.paths import is_detached, manifest_path
from lancetable.handlers import conditional_put, external
from lancetable.handlers.base import ManifestLocation
from lancetable.store.base import PutOutcome
from lancetable.table import transactions

__all__ = ["PLANTED"]

Patch = Callable[[], contextlib.AbstractContextManager[Any]]


def instead(owner: Any, name: str, made: Callable[[Any], Any]) -> Patch:
    """Replace an attribute by what `made` makes of it."""

    def patch() -> Any:
        return mock.patch.object(owner, name, made(getattr(owner, name)))

    return patch


def together(*patches: Patch) -> Patch:
    @contextlib.contextmanager
    def patch() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for each in patches:
                stack.enter_context(each())
            yield

    return patch


def create_by_looking(real: Any) -> Any:
    """Exists, then put."""

    def commit(self: Any, store: Any, base: str, version: int, naming: Any, data: bytes) -> PutOutcome:
        path = manifest_path(base, version, naming)
        if store.find(path) is not None:
            return PutOutcome.LOST
        store.put(path, data)
        return PutOutcome.WON

    return commit


def taken_means_won(real: Any) -> Any:
    def commit(self: Any, *arguments: Any) -> PutOutcome:
        outcome: PutOutcome = real(self, *arguments)
        return PutOutcome.WON if outcome is PutOutcome.LOST else outcome

    return commit


def nobody_is_me(real: Any) -> Any:
    def read_since(*arguments: Any) -> Any:
        return [(file, theirs and replace(theirs, uuid="somebody else")) for file, theirs in real(*arguments)]

    return read_since


def judge_once(real: Any) -> Any:
    """After a lost race the newest version is taken as it is."""

    def judge(self: Any, theirs: Any, version: Any) -> None:
        if self._written_transaction is None:
            real(self, theirs, version)

    return judge


def judge_the_newest(real: Any) -> Any:
    def judge(self: Any, theirs: Any, version: Any) -> None:
        if version.handler.locate(version.store, version.base, version.version + 1) is None:
            real(self, theirs, version)

    return judge


def missing_is_harmless(real: Any) -> Any:
    def judged(ours: Any, theirs: Any, context: Any) -> Verdict:
        return Verdict(Severity.COMPATIBLE) if theirs is None else check(ours, theirs, context)

    return judged


def numbers_of_the_first_attempt(real: Any) -> Any:
    given: dict[str, int] = {}

    def number(manifest: Any, fragments: Any) -> None:
        fragments = list(fragments)
        new = [fragment for fragment in fragments if not fragment.id]
        real(manifest, fragments)
        for fragment in new:
            fragment.id = given.setdefault(fragment.files[0].path, fragment.id)

    return number


def row_ids_of_the_first_attempt(real: Any) -> Any:
    given: dict[str, int] = {}

    def assign(manifest: Any, fragments: Any) -> Any:
        fragments = list(fragments)
        if fragments and fragments[0].files:
            manifest.next_row_id = given.setdefault(fragments[0].files[0].path, manifest.next_row_id)
        return real(manifest, fragments)

    return assign


def forget_their_deletions(real: Any) -> Any:
    """The vector of the version read, not of the one committed in between."""

    def merged(onto: Any, fragment_id: int, rows: Any) -> Any:
        return real(onto, fragment_id, rows)[0], rows

    return merged


def show_before_deciding(real: Any) -> Any:
    def commit(self: Any, store: Any, base: str, version: int, naming: Any, data: bytes) -> PutOutcome:
        final = manifest_path(base, version, naming)
        if not is_detached(version):
            self._put_decided(store, base, final, data)
        outcome: PutOutcome = real(self, store, base, version, naming, data)
        return outcome

    return commit


def believe_staged_paths(real: Any) -> Any:
    def finished(self: Any, store: Any, base: str, row: Any) -> ManifestLocation:
        return ManifestLocation(row.version, row.path, row.size_bytes, self._final_path(base, row)[1])

    return finished


PLANTED: dict[str, Patch] = {
    "create by exists and put": instead(conditional_put.ConditionalPutHandler, "commit", create_by_looking),
    "taken always means lost": together(
        instead(conditional_put, "look_back", lambda real: lambda *_: PutOutcome.LOST),
        instead(loop, "look_back", lambda real: lambda *_: PutOutcome.LOST),
        instead(loop, "_look_again", lambda real: lambda *_: PutOutcome.LOST),
        instead(transactions, "read_since", nobody_is_me),
    ),
    "taken always means won": instead(conditional_put.ConditionalPutHandler, "commit", taken_means_won),
    "new transactions are not read again after a lost race": instead(loop._Run, "_judge", judge_once),
    "judged against the newest version only": instead(loop._Run, "_judge", judge_the_newest),
    "a missing transaction is compatible": instead(loop, "check", missing_is_harmless),
    "fragment ids are kept after a lost race": instead(build, "number_fragments", numbers_of_the_first_attempt),
    "row ids are kept after a lost race": instead(build, "assign_row_ids", row_ids_of_the_first_attempt),
    "deletions are merged with the wrong version": instead(rebase, "_merged", forget_their_deletions),
    "cleanup takes files of commits on their way": instead(cleanup, "UNVERIFIED_AGE", lambda real: timedelta(0)),
    "the manifest is shown before it is decided": instead(external.ExternalHandler, "commit", show_before_deciding),
    "staged manifests are believed": instead(external.ExternalHandler, "_finished", believe_staged_paths),
}
