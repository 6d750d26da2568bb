"""The jobs of the library's own simulator tests, and the serial model that checks them.

Every attempt declares its effect on the contents of a table in plain Python (`TableContents`). The expected history is
the fold of the effects in the order of versions. If two commits were combined wrongly, some version differs from its
fold.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyroaring

from lancetable.dataset import LanceDataset, dataset, write_dataset
from lancetable.format import transaction as tx
from lancetable.format.index import IndexMetadata
from lancetable.format.paths import DATA_DIR, join, transaction_name, transaction_path
from lancetable.format.schema import Field, Schema
from lancetable.operation import LanceOperation
from lancetable.ops import commit as commits
from lancetable.ops.write.destination import WriteOptions
from lancetable.ops.write.write import write_fragments
from lancetable.proto import table_pb2
from lancetable.table.version import TableVersion, checkout, latest, open_version
from lancetable.testing.simulator.simulation import Job, Run, Work

_STEPS = 4


@dataclass(frozen=True)
class TableContents:
    """Contents of one version: values by id, and the names of additional columns."""

    rows: Mapping[int, int]
    columns: tuple[str, ...] = ()


Effect = Callable[[TableContents, Mapping[int, TableContents]], TableContents]  # the version before, and all versions


def unchanged(table: TableContents, _: Mapping[int, TableContents]) -> TableContents:
    """Effect of a change that keeps the contents."""
    return table


def without(gone: Collection[int]) -> Effect:
    """Return the effect of a delete of some ids."""
    return lambda table, _: replace(table, rows={key: old for key, old in table.rows.items() if key not in gone})


def with_value(changed: Collection[int], value: int) -> Effect:
    """Return the effect of setting the value of some ids. The change may add ids to `changed` while it runs."""
    return lambda table, _: replace(
        table, rows={key: value if key in changed else old for key, old in table.rows.items()}
    )


def batch(rows: Mapping[int, int]) -> pa.Table:
    """Return rows as an Arrow table to write."""
    return pa.table({"id": pa.array(rows, pa.int64()), "v": pa.array(rows.values(), pa.int64())})


KEPT = ("id", "v", "_rowid")
FIRST = dict.fromkeys(range(12), 0)


def make_table(stable_row_ids: bool) -> Callable[[str], None]:
    """Return a setup: ids 0..11 in fragments of 4 rows, a deleted fragment, and an unreferenced file."""

    def setup(uri: str) -> None:
        rows = batch({**FIRST, 100: 0})
        options: Any = {"max_rows_per_file": 4, "data_storage_version": "2.0"}
        table = write_dataset(rows, uri, enable_stable_row_ids=stable_row_ids, **options)
        table.delete("id = 100")
        version = table.table_version
        version.store.put(f"{join(version.base, DATA_DIR)}/left-behind.lance", b"unreferenced file")

    return setup


def read_table(version: LanceDataset) -> Any:
    """Return the contents of a version in a form that can be compared."""
    table = version.to_table(with_row_id=version.has_stable_row_ids)
    rows = sorted(zip(*(table[name].to_pylist() for name in KEPT if name in table.column_names), strict=True))
    return sorted(set(table.column_names) - set(KEPT)), rows


# --- changes ---------------------------------------------------------------------------------------------------------


class Writer:
    """Job that makes a few random changes in sequence. After a crash it continues with the next change."""

    def __init__(self, number: int, changes: list[str]) -> None:
        self.number, self.changes = number, changes
        self.remaining_steps = _STEPS
        self.next_id = 1000 * number

    def __call__(self, job: Job) -> None:
        """Make the remaining changes."""
        while self.remaining_steps:
            self.remaining_steps -= 1
            if job.rng.random() < 0.3:
                job.sleep(job.rng.random())
            getattr(self, job.rng.choice(self.changes))(job)

    def fresh_rows(self, job: Job) -> dict[int, int]:
        """Return rows with unused ids."""
        first = self.next_id
        self.next_id += 10
        return {first + number: self.number for number in range(job.rng.randrange(1, 4))}

    def some_ids(self, job: Job) -> list[int]:
        """Return ids to change, among the initial ones, so that writers conflict."""
        return sorted(job.rng.sample(range(12), job.rng.randrange(1, 3)))

    def append(self, job: Job) -> None:
        """Append new rows."""
        rows = self.fresh_rows(job)
        job.attempt(
            lambda: write_dataset(batch(rows), job.uri, mode="append"),
            f"append {sorted(rows)}",
            effect=lambda table, _: replace(table, rows={**table.rows, **rows}),
        )

    def delete(self, job: Job, gone: Sequence[int] = ()) -> None:
        """Delete rows by id, by default some of the initial ones."""
        gone = gone or self.some_ids(job)
        condition = f"id IN ({', '.join(map(str, gone))})"
        job.attempt(lambda: dataset(job.uri).delete(condition), f"delete {gone}", effect=without(gone))

    def delete_fragment(self, job: Job) -> None:
        """Delete all initial rows of one fragment."""
        first = 4 * job.rng.randrange(3)
        self.delete(job, range(first, first + 4))

    def update(self, job: Job) -> None:
        """Update the value of some rows."""
        changed, value = self.some_ids(job), job.rng.randrange(1, 1000)
        condition = f"id IN ({', '.join(map(str, changed))})"
        job.attempt(
            lambda: dataset(job.uri).update({"v": str(value)}, where=condition),
            f"update {changed} to {value}",
            effect=with_value(changed, value),
        )

    def overwrite(self, job: Job) -> None:
        """Overwrite the table with new rows."""
        rows = self.fresh_rows(job)
        job.attempt(
            lambda: write_dataset(batch(rows), job.uri, mode="overwrite"),
            f"overwrite {sorted(rows)}",
            effect=lambda *_: TableContents(rows),
        )

    def restore(self, job: Job) -> None:
        """Restore the version of the setup."""
        version = job.run.first
        job.attempt(
            lambda: dataset(job.uri, version).restore(),
            f"restore {version}",
            effect=lambda _, tables: tables[version],
        )

    def config(self, job: Job) -> None:
        """Set one key of the table's config."""
        key = f"key{job.rng.randrange(2)}"
        operation = tx.UpdateConfig(config=tx.UpdateMap({key: job.name}))
        job.attempt(lambda: commit(job, operation), f"config {key}", effect=unchanged)

    def add_column(self, job: Job) -> None:
        """Add a column without values by a merge."""
        name = f"c{self.next_id}"
        self.next_id += 10

        def act() -> None:
            base = open_version(job.uri)
            schema = base.schema
            added = Field(name, base.manifest.max_field_id + 1, -1, "int64")
            wider = Schema((*schema.fields, added), schema.metadata)
            operation = tx.Merge(tuple(base.manifest.fragments), wider, preserves_nullability=True)
            commits.commit(base, tx.Transaction.create(base.version, operation))

        job.attempt(act, f"add column {name}", effect=lambda table, _: replace(table, columns=(*table.columns, name)))

    def compact(self, job: Job) -> None:
        """Execute the steps of a compaction as two commits: reserve fragment ids, then replace fragments."""

        def act() -> None:
            base = open_version(job.uri)
            fragments = list(base.manifest.fragments)
            if len(fragments) < 2 or any(len(fragment.files) > 1 for fragment in fragments):
                fragments = fragments[:1]
            else:
                start = job.rng.randrange(len(fragments) - 1)
                fragments = fragments[start : start + 2]
            table = LanceDataset.from_version(base)
            ids = {fragment.id for fragment in fragments}
            chosen = [fragment for fragment in table.get_fragments() if fragment.fragment_id in ids]
            rows = table.scanner(fragments=chosen).to_table()
            new = write_rows(base, rows) if rows.num_rows else ()
            reserved = commits.commit(base, tx.Transaction.create(base.version, tx.ReserveFragments(1)))
            number = reserved.manifest.max_fragment_id
            assert number is not None
            groups = [tx.RewriteGroup(tuple(fragments), (replace(fragment, id=number),)) for fragment in new]
            commits.commit(base, tx.Transaction.create(base.version, tx.Rewrite(tuple(groups))))

        job.attempt(act, "compact", effect=unchanged, commits=2)

    def optimize(self, job: Job) -> None:
        """Run the library's compaction, which makes no commit, one or several."""
        job.attempt(
            lambda: dataset(job.uri).optimize.compact_files(target_rows_per_fragment=8),
            "optimize",
            effect=unchanged,
            commits=None,
        )

    def rewrite_column(self, job: Job) -> None:
        """Replace the values of one column in one fragment, which keeps its rows and their addresses."""
        ids: list[int] = []
        value = job.rng.randrange(1, 1000)

        def act() -> None:
            table = dataset(job.uri)
            fragments = table.get_fragments()
            if not fragments:
                commit(job, tx.ReserveFragments(1))
                return
            fragment = fragments[job.rng.randrange(len(fragments))]
            ids[:] = fragment.to_table(columns=["id"])["id"].to_pylist()
            changed, fields = fragment.update_columns(batch(dict.fromkeys(ids, value)), "id")[:2]
            operation = LanceOperation.Update(
                updated_fragments=[changed], fields_modified=fields, update_mode="rewrite_columns"
            )
            LanceDataset.commit(job.uri, operation, read_version=table.version)

        job.attempt(act, f"rewrite a column with {value}", effect=with_value(ids, value))

    def index(self, job: Job) -> None:
        """Commit an index entry that covers all current fragments."""
        name = f"i{job.rng.randrange(2)}"

        def act() -> None:
            base = open_version(job.uri)
            (number,) = (field.id for field in base.schema.fields if field.name == "v")
            files = values_by_fragment(base, number)
            covered = pyroaring.BitMap(files).serialize()
            details = "/lancetable.SimulatedIndexDetails"  # has no files; indexes of known types are read
            entry = IndexMetadata(uuid.uuid4(), name, (number,), base.version, covered, 0, type_url=details)
            job.run.notes[entry.uuid.bytes] = files
            commits.commit(base, tx.Transaction.create(base.version, tx.CreateIndex((entry,))))

        job.attempt(act, f"index {name}", effect=unchanged)

    def tag(self, job: Job) -> None:
        """Tag the newest version."""
        name = f"{job.name}-{self.next_id}"
        self.next_id += 10

        def act() -> None:
            newest = dataset(job.uri)
            newest.tags.create(name, newest.version)
            job.run.notes[name] = newest.version

        job.attempt(act, f"tag {name}", commits=0)

    def read_newest(self, job: Job) -> None:
        """Read the newest version."""
        job.read_newest()


def values_by_fragment(version: TableVersion, number: int) -> dict[int, str]:
    """Return, for each fragment, the path of the file that stores the values of a field."""
    return {
        fragment.id: file.path
        for fragment in version.manifest.fragments
        for file in fragment.files
        if number in file.fields
    }


def commit(job: Job, operation: tx.Operation) -> TableVersion:
    """Commit an operation on the newest version."""
    base = open_version(job.uri)
    return commits.commit(base, tx.Transaction.create(base.version, operation))


def write_rows(version: TableVersion, rows: pa.Table) -> Any:
    """Write rows to new files and return their fragments, which are not yet part of a version."""
    transaction: Any = write_fragments(version, rows.schema, iter(rows.combine_chunks().to_batches()), WriteOptions())
    return transaction.operation.fragments


def old_writer(job: Job) -> None:
    """Overwrite the table without storing a transaction, as early writers did: its changes are unknown to others."""
    if job.run.world.rows is not None:
        return  # such writers predate external manifest stores
    job.sleep(job.rng.random() * 2)
    columns: list[str] = []
    written: list[tx.Transaction] = []

    def act() -> None:
        base = open_version(job.uri)
        columns[:] = [name for name in base.schema.names if name not in KEPT]
        written[:] = [tx.Transaction.create(base.version, tx.Overwrite((), base.schema))]
        commits.commit(base, written[0])

    job.attempt(
        act,
        "overwrite without a transaction",
        effect=lambda table, _: TableContents({}, tuple(columns)),
        commits=None,  # after a lost reply it cannot recognise its own version
        on_published=lambda path: hide_transaction(job, path, written[0]),
    )


def hide_transaction(job: Job, path: str, transaction: tx.Transaction) -> None:
    """Remove the transaction of a manifest."""
    store, data = job.run.world.store.inner, transaction.to_bytes()
    store.put(path, bytes(store.read_all(path)).replace(data, b"\xff" * len(data)))
    directory = path.partition("/_versions/")[0]
    store.delete([transaction_path(directory, transaction_name(transaction.read_version, transaction.uuid))])


# --- cleaning --------------------------------------------------------------------------------------------------------


def cleaner(job: Job) -> None:
    """Remove the old versions of the setup, and unreferenced files.

    Both age limits exceed any clock skew and the duration of any commit. Otherwise a cleanup could remove the version
    that a writer is about to write, or its new files.
    """
    for _ in range(2):
        job.sleep(job.rng.random() * 2)
        job.run.cleaned = True
        job.attempt(lambda: dataset(job.uri).cleanup_old_versions(timedelta(days=14)), "clean up", commits=0)


# --- jobs of a run ---------------------------------------------------------------------------------------------------

PLAIN = ["append", "append", "delete", "delete", "delete_fragment", "update", "config", "add_column", "compact"]
PLAIN += ["optimize", "read_newest", "rewrite_column", "index", "tag"]
RARE = ["overwrite", "restore"]
STABLE = ["append", "append", "delete", "update", "read_newest", "overwrite", "optimize", "rewrite_column", "restore"]


def is_stable(seed: int) -> bool:
    """Return True if the table of a seed has stable row ids."""
    return random.Random(seed).random() < 0.25


def standard_jobs(run: Run, also: str = "") -> dict[str, Work]:
    """Return 2 to 4 writers, 2 readers, and sometimes a cleaner or an old writer, or the one that `also` selects."""
    rng = random.Random(run.seed)
    stable = rng.random() < 0.25
    changes = STABLE if stable else [*PLAIN, *(RARE if rng.random() < 0.5 else [])]
    jobs: dict[str, Work] = {f"w{number}": Writer(number, changes) for number in range(1, rng.randrange(3, 6))}
    for number in range(2):
        jobs[f"r{number}"] = reader
    drawn = rng.random()
    if not stable and (also == "cleaner" or (not also and drawn < 0.3)):
        # The format does not prevent the removal of a version while it is being tagged, so these runs create no tags.
        for job in jobs.values():
            if isinstance(job, Writer):
                job.changes = [change for change in job.changes if change != "tag"]
        jobs["cleaner"] = cleaner
    elif not stable and (also == "old" or (not also and drawn < 0.4)):
        jobs["old"] = old_writer
    return jobs


def reader(job: Job) -> None:
    """Read the newest version from time to time."""
    for _ in range(3):
        job.read_newest()
        job.sleep(job.rng.random())


def check_serially(run: Run) -> None:
    """Check that every remaining version has the contents that result from the effects of all attempts up to it."""
    newest = latest(open_version(run.uri))
    check_tags(run)
    tables = {run.first: TableContents(FIRST)}
    row_ids: dict[int, int] = {}
    stable = run.dataset().has_stable_row_ids
    for number in range(run.first + 1, newest.version + 1):
        attempt = run.owner(number)
        assert attempt is not None, f"version {number} has no attempt"
        assert attempt.effect is not None
        effect: Any = attempt.effect
        tables[number] = effect(tables[number - 1], tables)
        content = run.content(number)
        if content is None:
            continue
        what = f"version {number}, {attempt.job}: {attempt.name}"
        columns, rows = content
        ids = [row[0] for row in rows]
        assert len(ids) == len(set(ids)), f"{what}: duplicate rows"
        expected = tables[number]
        assert {row[0]: row[1] for row in rows} == expected.rows, f"{what}: {ids}, expected {sorted(expected.rows)}"
        assert columns == sorted(expected.columns), f"{what}: wrong columns"
        if stable:
            check_row_ids(row_ids, ids, [row[2] for row in rows], what)
        check_indices(run, checkout(newest, number), what)


def check_tags(run: Run) -> None:
    """Check that every acknowledged tag refers to its version, which can be opened."""
    for attempt in run.attempts:
        if attempt.name.startswith("tag ") and attempt.outcome == "acknowledged":
            name = attempt.name.removeprefix("tag ")
            assert run.dataset().checkout_version(name).version == run.notes[name], f"{name} refers to another version"


def check_indices(run: Run, version: TableVersion, what: str) -> None:
    """Check that an index covers only fragments whose values have not changed since it was created."""
    section = version.file.index_section(version.store)
    for index in table_pb2.IndexSection.FromString(section or b"").indices:
        indexed_files, files = run.notes[index.uuid.uuid], values_by_fragment(version, index.fields[0])
        for number in pyroaring.BitMap.deserialize(index.fragment_bitmap):
            unchanged = files.get(number) in (None, indexed_files.get(number))
            assert unchanged, f"{what}: index {index.name} covers fragment {number}, whose values have changed"


def check_row_ids(known: dict[int, int], ids: list[int], row_ids: list[int], what: str) -> None:
    """Check that a row keeps its row id in all versions, and that row ids are unique."""
    assert len(set(row_ids)) == len(row_ids), f"{what}: two rows have the same row id"
    for id_, row_id in zip(ids, row_ids, strict=True):
        assert known.setdefault(row_id, id_) == id_, f"{what}: row id {row_id} was assigned twice"
