"""A published version whose number a cleanup had freed: valid, lost or unknown, for all pairs of operations."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from lancetable.commit import commit_loop
from lancetable.commit.commit_loop import commit_transaction
from lancetable.commit.lost_update import is_lost_update
from lancetable.errors import CommitConflictError, CommitStateUnknownError, RetryableCommitConflictError
from lancetable.format import transaction as tx
from lancetable.format.manifest_naming import hint_path, manifest_path
from lancetable.format.transaction import Transaction
from lancetable.store.base import Capabilities, ObjectMeta, PutOutcome
from lancetable.table import clock
from lancetable.table.version import TableVersion, latest
from lancetable.testing.stores import CountingStore, WrappingStore

# Operations that add or drop no file: only the clock of the store can tell which version came first.
WITHOUT_FILES = {"Restore", "Project", "ProjPres", "Config", "SchemaConf", "Reserve", "UpdateBases", "Merge"}
# Operations after which no file of an earlier version is needed.
DISCARDING = {"Overwrite", "Restore"}
# Operations on the fragment that the late operation may have changed, or on all fragments.
AMBIGUOUS = {"Delete", "UpdateRows", "UpdateCols", "DataRepl", "Rewrite", "Merge", "Project", "ProjPres", "CreateIndex"}


def commit(version: TableVersion, operation: tx.Operation) -> TableVersion:
    return commit_transaction(version, Transaction.create(version.version, operation))


@pytest.fixture
def publish_late(
    base: TableVersion, maker_of: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., TableVersion | Exception]:
    """Return a function that publishes version 2 after other versions were committed and some of them removed.

    Version 2 of the others is an append, version 3 is `theirs`, and `more` versions follow. `removed` are the numbers
    of the versions that the cleanup removes. The function returns the version or the error.
    """

    def publish(
        ours: tx.Operation, theirs: str, removed: Sequence[int] = (2,), more: int = 0
    ) -> TableVersion | Exception:
        second = commit(base, maker_of(base).make("Append"))
        version = commit(second, maker_of(second).make(theirs))
        for _ in range(more):
            version = commit(version, maker_of(version).make("Append"))
        base.store.delete([manifest_path(base.base, number, base.location.naming) for number in removed])
        time.sleep(0.02)  # file system clocks may tick every 4 ms
        monkeypatch.setattr(commit_loop, "is_in_grace_period", lambda *_: False)
        monkeypatch.setattr(
            commit_loop._CommitRun, "catch_up", lambda *_, **__: None
        )  # versions were listed before version 2
        try:
            return commit(replace(base, newest_at=clock.seconds()), ours)
        except (RetryableCommitConflictError, CommitStateUnknownError) as error:
            return error

    return publish


def test_no_valid_version_counts_as_lost(base: TableVersion, maker: Any, ours: str, theirs: str) -> None:
    """An operation that conflicts with the published one is replaced by an update of the configuration."""
    published = commit(base, maker.make(ours))
    try:
        newest = commit_transaction(published, Transaction.create(base.version, maker.make(theirs)))
    except CommitConflictError:
        newest = commit(published, tx.UpdateConfig(config=tx.UpdateMap({"other": "1"})))
    assert newest.version == published.version + 1
    assert is_lost_update(published, base) is False


def test_version_under_a_freed_number_is_not_acknowledged(
    base: TableVersion, maker: Any, publish_late: Any, ours: str, theirs: str
) -> None:
    """The predecessor is kept, as a cleanup keeps a tagged version."""
    late = publish_late(maker.make(ours), theirs)
    if isinstance(late, TableVersion):
        assert theirs in DISCARDING
    elif ours not in WITHOUT_FILES and theirs not in AMBIGUOUS:
        assert isinstance(late, RetryableCommitConflictError)
        assert base.handler.locate(base.store, base.base, 2) is None
    assert latest(base).version == 3


@pytest.mark.parametrize("removed", [(1, 2), (2,)], ids=["with its predecessor", "alone"])
def test_late_append_is_refused_and_removed(
    base: TableVersion, maker: Any, publish_late: Any, removed: tuple[int, ...]
) -> None:
    late = publish_late(maker.make("Append"), "Append", removed)
    assert isinstance(late, RetryableCommitConflictError)
    assert "cleaned up" in str(late)
    assert base.handler.locate(base.store, base.base, 2) is None


def test_late_append_below_several_freed_numbers_is_refused(base: TableVersion, maker: Any, publish_late: Any) -> None:
    """The version hint still leads to the newest version."""
    late = publish_late(maker.make("Append"), "Append", (1, 2, 3), more=1)
    assert isinstance(late, RetryableCommitConflictError)
    assert latest(base).version == 4
    assert base.store.read_all(hint_path(base.base)) == b'{"version":4}'


def test_version_after_a_kept_one_is_checked(base: TableVersion, maker: Any) -> None:
    """The commit loses against version 2, which a tag keeps, and wins the number 3, which a cleanup has freed."""

    class Remote(WrappingStore):
        @property
        def capabilities(self) -> Capabilities:
            return replace(self.inner.capabilities, local=False, ordered_list=True)

        def put_if_absent(self, path: str, data: Any, *, on_existing: Any = None) -> PutOutcome:
            outcome = self.inner.put_if_absent(path, data)
            if outcome is PutOutcome.LOST and on_existing is not None:
                on_existing(bytes(self.inner.read_all(path)))
            return outcome

    held = replace(base, store=Remote(base.store), newest_at=clock.seconds() - 1.5)
    version = base
    for _ in range(3):
        version = commit(version, maker.make("Append"))
    base.store.delete([manifest_path(base.base, number, base.location.naming) for number in (1, 3)])
    with pytest.raises(RetryableCommitConflictError):
        commit(held, maker.make("Append"))
    assert base.handler.locate(base.store, base.base, 3) is None
    assert latest(base).version == 4


@pytest.mark.parametrize(
    ("newer_times", "is_lost"),
    [((20.0,), False), ((5.0,), True), ((10.0,), None), ((None, 20.0), None)],
    ids=["made later", "made before", "made at the same time", "behind a gap"],
)
def test_clock_of_the_store_decides_without_files_and_neighbours(
    base: TableVersion, maker: Any, newer_times: tuple[float | None, ...], is_lost: bool | None
) -> None:
    ours = commit(base, maker.make("Reserve"))
    times, version = {ours.location.path: 10.0}, ours
    for seconds in newer_times:
        version = commit(version, maker.make("Append"))
        if seconds is None:
            version.store.delete([version.location.path])
        else:
            times[version.location.path] = seconds
    base.store.delete([base.location.path])

    class Dated(CountingStore):
        def list_names(self, *arguments: Any, **options: Any) -> list[ObjectMeta]:
            found = super().list_names(*arguments, **options)
            moments = {path.rpartition("/")[2]: datetime.fromtimestamp(t, timezone.utc) for path, t in times.items()}
            return [meta._replace(last_modified=moments.get(meta.name)) for meta in found]

    assert is_lost_update(replace(ours, store=Dated(ours.store)), base) is is_lost


def test_newest_version_is_valid(base: TableVersion, maker: Any) -> None:
    landed = commit(base, maker.make("Append"))
    base.store.delete([base.location.path])
    assert is_lost_update(landed, base) is False
