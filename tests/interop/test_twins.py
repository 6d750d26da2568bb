"""Every operation, applied by each library to a copy of the same table: both must produce the same version.

The table of one of the two is used for the next step, so that each library works on tables of the other. Rows with
their ids, addresses and versions, the schema with its field ids, fragments and settings are compared after each step,
through both libraries. LANCETABLE_TEST_SCALE multiplies the number of walks; a failure reports its seed and all steps.
"""

from __future__ import annotations

import os
import random
import shutil
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lancetable

SCALE = int(os.environ.get("LANCETABLE_TEST_SCALE", "1"))
STEPS = 20
PEER_BUG = "an error of pylance that is unrelated to the step"
PEER_BUGS = (
    "Internal error",  # bugs reported by its query engine, as in some merges without an insert
    "/_indices/",  # after it compacted a branch, it looks for the new index below the branch's parent
)

Act = Callable[[Any, str], Any]
"""Function that applies a step with one of the libraries to the table at a path."""

KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "s": (pa.string(), [None, "", "a", "ünï", "x" * 40]),
    "n": (pa.int32(), [None, -3, 0, 1, 3]),
    "f": (pa.float64(), [None, 0.5, -1.0, 4.0]),
    "b": (pa.bool_(), [None, True, False]),
    "l": (pa.list_(pa.int32()), [None, [], [1], [1, None, 3]]),
    "ts": (pa.timestamp("us"), [None, 10**15, 2 * 10**15]),
    "v": (pa.list_(pa.float32(), 2), [[0.5, 1.0], [-1.0, 0.0]]),
    "x": (pa.binary(), [None, b"", b"ab", b"\0" * 30]),
    "d": (pa.date32(), [None, 0, 19_000]),
    "m": (pa.decimal128(9, 2), [None, Decimal("0.25"), Decimal("-3.00")]),
    "t": (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        [{"a": 1, "b": "x"}, {"a": None, "b": "yy"}, {"a": -3, "b": None}],
    ),
}


class Twins:
    """The table at `uri`, copies of it, and the random choices of the next step."""

    def __init__(self, root: Path, seed: int, storage: str, stable: bool) -> None:
        self.rng = random.Random(f"twins {seed} {storage} {stable}")
        self.uri, self.twin, self.before = (str(root / name) for name in ("t.lance", "ours.lance", "before.lance"))
        self.stable, self.storage = stable, storage
        self.told: list[str] = [f"seed {seed}, {storage}, stable {stable}"]
        self.next_id, self.names = 0, 0
        self.exact = True  # True if the order of rows is fixed
        columns = {name: KINDS[name][0] for name in self.rng.sample(sorted(KINDS), self.rng.randrange(1, 5))}
        table = self.rows({"id": pa.int64(), **columns}, 12)
        creator = self.rng.choice([lance, lancetable])
        options: dict[str, Any] = {"enable_stable_row_ids": True} if stable else {}
        creator.write_dataset(table, self.uri, data_storage_version=storage, max_rows_per_file=5, **options)

    # ------------------------------------------------------------------------------------------------------- steps

    def rows(self, columns: dict[str, pa.DataType], number: int, ids: list[int] | None = None) -> pa.Table:
        if ids is None:
            ids = list(range(self.next_id, self.next_id + number))
            self.next_id += number
        made = {
            name: ids if name == "id" else [self.rng.choice(KINDS[name.rstrip("0123456789")][1]) for _ in ids]
            for name in columns
        }
        return pa.table([pa.array(made[name], kind) for name, kind in columns.items()], names=list(columns))

    @property
    def columns(self) -> dict[str, pa.DataType]:
        return {each.name: each.type for each in lance.dataset(self.uri).schema}

    def predicate(self) -> str:
        bound = self.rng.randrange(0, max(2, self.next_id))
        choices = [
            f"id < {bound}",
            f"id >= {bound}",
            f"id = {bound}",
            f"id % 3 = {bound % 3}",
            f"id IN ({bound}, 2, 5)",
        ]
        choices += [f"{name} IS NULL" for name in self.columns if name[0] == "s"]
        choices += [f"{name} > 0" for name in self.columns if name[0] in "nf"]
        return self.rng.choice(choices)

    def new_name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}{self.names}"

    def append(self) -> Act:
        columns = self.columns
        if self.rng.random() < 0.3:
            columns = {name: kind for name, kind in columns.items() if name == "id" or self.rng.random() < 0.6}
        table, per_file = self.rows(columns, self.rng.choice([1, 4, 9])), self.rng.choice([3, 100])
        return lambda module, uri: module.write_dataset(table, uri, mode="append", max_rows_per_file=per_file)

    def overwrite(self) -> Act:
        columns = {"id": pa.int64()}
        columns.update((name, KINDS[name][0]) for name in self.rng.sample(sorted(KINDS), 3))
        table = self.rows(columns, self.rng.choice([0, 6, 14]))
        return lambda module, uri: module.write_dataset(table, uri, mode="overwrite", max_rows_per_file=5)

    def delete(self) -> Act:
        predicate = self.predicate()
        self.told.append(predicate)
        return lambda module, uri: module.dataset(uri).delete(predicate)

    def truncate(self) -> Act | None:
        return None if self.rng.random() < 0.8 else lambda module, uri: module.dataset(uri).truncate_table()

    def update(self) -> Act | None:
        choices = {}
        for name, kind in self.columns.items():
            if name[0] == "n":
                choices[name] = self.rng.choice([f"{name} + 1", "id", "NULL"])
            elif name[0] == "s":
                choices[name] = self.rng.choice(["'new'", f"upper({name})"])
            elif name[0] == "f":
                choices[name] = self.rng.choice(["0.25", f"{name} * 2"])
            elif kind == pa.bool_():
                choices[name] = f"NOT {name}"
        if not choices:
            return None
        picked = {name: choices[name] for name in self.rng.sample(sorted(choices), min(len(choices), 2))}
        where = self.predicate() if self.rng.random() < 0.8 else None
        self.told.append(f"{picked} {where}")
        return lambda module, uri: module.dataset(uri).update(picked, where=where)

    def merge_insert(self) -> Act:
        known = lance.dataset(self.uri).to_table(columns=["id"])["id"].to_pylist()
        ids = self.rng.sample(known, min(len(known), self.rng.randrange(0, 6)))
        ids += range(self.next_id, self.next_id + self.rng.randrange(0, 4))
        self.next_id += 4
        self.rng.shuffle(ids)
        source = self.rows(self.columns, 0, ids)
        matched = self.rng.choice(["update", "update", "condition", "delete", "keep"])
        insert = matched == "keep" or self.rng.random() < 0.7
        unmatched = self.rng.choice(["keep", "keep", "delete", "condition"])
        bound = self.rng.randrange(0, max(2, self.next_id))
        self.told.append(f"{sorted(ids)} {matched} {insert} {unmatched} {bound}")
        self.exact = False

        def act(module: Any, uri: str) -> Any:
            builder = module.dataset(uri).merge_insert("id")
            if matched == "delete":
                builder = builder.when_matched_delete()
            elif matched != "keep":
                builder = builder.when_matched_update_all(f"target.id > {bound}" if matched == "condition" else None)
            if insert:
                builder = builder.when_not_matched_insert_all()
            if unmatched != "keep":
                builder = builder.when_not_matched_by_source_delete(
                    f"id > {bound}" if unmatched == "condition" else None
                )
            counts = builder.execute(source)
            return {name: counts[name] for name in sorted(counts) if name.endswith("_rows")}

        return act

    def add_column(self) -> Act | None:
        how = self.rng.choice(["sql", "field", "reader", "function", "join"])
        name = self.new_name("n")
        self.told.append(how)
        if how == "sql":
            return lambda module, uri: module.dataset(uri).add_columns({name: "CAST(id * 2 AS INT)"})
        if how == "field":
            return lambda module, uri: module.dataset(uri).add_columns(pa.field(name, pa.int32()))
        if how == "join":
            ids = [one for one in range(self.next_id) if one % 3]
            right = pa.table({"id": ids, name: pa.array(ids, pa.int32())})
            return lambda module, uri: module.dataset(uri).merge(right, "id")
        schema = pa.schema([pa.field(name, pa.int32())])

        def from_reader(module: Any, uri: str) -> None:
            ids = module.dataset(uri).to_table(columns=["id"])["id"].cast(pa.int32())
            module.dataset(uri).add_columns(pa.table([ids], schema=schema).to_reader(max_chunksize=4))

        def from_function(module: Any, uri: str) -> None:
            @module.batch_udf(output_schema=schema)
            def function(batch: pa.RecordBatch) -> pa.RecordBatch:
                return pa.record_batch([batch["id"].cast(pa.int32())], schema=schema)

            module.dataset(uri).add_columns(function, read_columns=["id"], batch_size=4)

        if not lance.dataset(self.uri).count_rows():
            return None  # pylance adds columns to empty tables in another way
        return from_reader if how == "reader" else from_function

    def drop_column(self) -> Act | None:
        names = [name for name in self.columns if name != "id"]
        if len(names) < 2:
            return None
        name = self.rng.choice(names)
        return lambda module, uri: module.dataset(uri).drop_columns([name])

    def rename(self) -> Act | None:
        names = [name for name in self.columns if name != "id"]
        if not names:
            return None
        old = self.rng.choice(names)
        new = self.new_name(old.rstrip("0123456789"))
        return lambda module, uri: module.dataset(uri).alter_columns({"path": old, "name": new})

    def cast(self) -> Act | None:
        casts = {pa.int32(): pa.int64(), pa.int64(): pa.int32(), pa.float64(): pa.float32()}
        casts.update({pa.string(): pa.large_string(), pa.large_string(): pa.string(), pa.float32(): pa.float64()})
        able = {name: casts[kind] for name, kind in self.columns.items() if kind in casts and name != "id"}
        if not able:
            return None
        name = self.rng.choice(sorted(able))
        self.told.append(f"{name} {able[name]}")
        return lambda module, uri: module.dataset(uri).alter_columns({"path": name, "data_type": able[name]})

    def require(self) -> Act:
        nullable = self.rng.random() < 0.5
        return lambda module, uri: module.dataset(uri).alter_columns({"path": "id", "nullable": nullable})

    def compact(self) -> Act:
        options = {
            "target_rows_per_fragment": self.rng.choice([2, 8, 1000]),
            "materialize_deletions_threshold": self.rng.choice([0.0, 0.1, 0.5]),
        }
        self.told.append(str(options))

        def act(module: Any, uri: str) -> Any:
            done = module.dataset(uri).optimize.compact_files(**options)
            return done.fragments_removed, done.fragments_added, done.files_removed, done.files_added

        return act

    def clean_up(self) -> Act:
        keep = self.rng.choice([2, 4])

        def act(module: Any, uri: str) -> Any:
            stats = module.dataset(uri).cleanup_old_versions(
                retain_versions=keep, error_if_tagged_old_versions=False, delete_unverified=True
            )
            # pylance keeps young files of failed changes, which no version references.
            files = () if "late" in self.told else (stats.data_files_removed, stats.deletion_files_removed)
            return stats.old_versions, *files

        return act

    def restore(self) -> Act:
        version = self.rng.choice([each["version"] for each in lance.dataset(self.uri).versions()])
        self.told.append(str(version))
        return lambda module, uri: module.dataset(uri, version=version).restore()

    def tag(self) -> Act:
        name = self.rng.choice("ab")
        version = self.rng.choice([each["version"] for each in lance.dataset(self.uri).versions()])
        known = name in lance.dataset(self.uri).tags.list()
        action = self.rng.choice(["update", "delete"]) if known else "create"
        arguments = (name,) if action == "delete" else (name, version)
        return lambda module, uri: getattr(module.dataset(uri).tags, action)(*arguments)

    def branch(self) -> Act:
        dataset = lance.dataset(self.uri)
        version = self.rng.choice([each["version"] for each in dataset.versions()])
        name = self.new_name("side")
        table = self.rows({each.name: each.type for each in lance.dataset(self.uri, version=version).schema}, 3)
        self.told.append(f"{name} from {version}")

        def act(module: Any, uri: str) -> Any:
            side = module.dataset(uri).create_branch(name, version)
            side.insert(table)
            side.delete("id % 4 = 1")
            return facts(side, self.stable), len(module.dataset(uri).branches.list())

        return act

    def settings(self) -> Act:
        what = self.rng.choice(["update_config", "update_metadata", "update_schema_metadata"])
        values = {self.rng.choice("xy"): self.rng.choice(["1", "zwei", None])}
        self.told.append(f"{what} {values}")
        return lambda module, uri: getattr(module.dataset(uri), what)(values)

    def field_settings(self) -> Act:
        # A column whose type never changes, because pylance loses the metadata with a cast.
        value = str(self.rng.randrange(3))
        return lambda module, uri: module.dataset(uri).update_field_metadata({"id": {"k": value}})

    def committed_delete(self) -> Act | None:
        fragments = lance.dataset(self.uri).get_fragments()
        if not fragments:
            return None
        number, predicate = self.rng.choice(fragments).fragment_id, self.predicate()
        self.told.append(f"{number} {predicate}")

        def act(module: Any, uri: str) -> None:
            dataset = module.dataset(uri)
            left = dataset.get_fragment(number).delete(predicate)
            updated, removed = ([], [number]) if left is None else ([left], [])
            operation = module.LanceOperation.Delete(updated, removed, predicate)
            module.LanceDataset.commit(uri, operation, read_version=dataset.version)

        return act

    def upsert_some_columns(self) -> Act | None:
        """Update some columns of the matched rows; the other columns keep their values."""
        columns = self.columns
        names = [name for name in columns if name != "id" and self.rng.random() < 0.5]
        known = lance.dataset(self.uri).to_table(columns=["id"])["id"].to_pylist()
        if not names or not known:
            return None
        source = self.rows({name: columns[name] for name in ["id", *names]}, 0, self.rng.sample(known, 1))
        # By default, pylance rewrites columns if the key has a usable index.
        mode = self.rng.choice(["rewrite_rows", "rewrite_columns"])
        self.told.append(f"{mode} {source.column_names} {source['id'].to_pylist()}")
        self.exact = False

        def act(module: Any, uri: str) -> Any:
            builder = module.dataset(uri).merge_insert("id").when_matched_update_all().write_mode(mode)
            counts = builder.execute(source)
            return {name: counts[name] for name in sorted(counts) if name.endswith("_rows")}

        return act

    def nested(self) -> Act | None:
        """Drop, rename or widen a field of a struct."""
        able = [
            (name, each.name)
            for name, kind in self.columns.items()
            if pa.types.is_struct(kind)
            for each in kind
            if kind.num_fields > 1
        ]
        if not able:
            return None
        column, field = self.rng.choice(able)
        # pylance cannot read a table of 2.0 after its own cast of a nested field.
        hows = ["drop", "rename"] if self.storage == "2.0" else ["drop", "rename", "cast"]
        path, how = f"{column}.{field}", self.rng.choice(hows)
        self.told.append(f"{how} {path}")
        if how == "drop":
            return lambda module, uri: module.dataset(uri).drop_columns([path])
        if how == "rename":
            new = self.new_name(field.rstrip("0123456789"))
            return lambda module, uri: module.dataset(uri).alter_columns({"path": path, "name": new})
        kind = pa.large_string() if field[0] == "b" else pa.int64()
        return lambda module, uri: module.dataset(uri).alter_columns({"path": path, "data_type": kind})

    def written_apart(self) -> Act:
        """Write fragments, then commit them."""
        table, over = self.rows(self.columns, self.rng.choice([2, 7])), self.rng.random() < 0.2

        def act(module: Any, uri: str) -> None:
            dataset = module.dataset(uri)
            mode = "overwrite" if over else "append"
            made = module.fragment.write_fragments(table, uri, mode=mode, max_rows_per_file=3)
            kinds = module.LanceOperation
            operation = kinds.Overwrite(table.schema, made) if over else kinds.Append(made)
            module.LanceDataset.commit(uri, operation, read_version=dataset.version)

        return act

    def late(self) -> Act | None:
        """Make a change on an older version: it is rebased, or conflicts with a newer version."""
        versions = [each["version"] for each in lance.dataset(self.uri).versions()][-4:-1]
        if not versions:
            return None
        version, predicate = self.rng.choice(versions), self.predicate()
        how = self.rng.choice(["append", "delete", "configure", "compact"])
        table = self.rows({each.name: each.type for each in lance.dataset(self.uri, version=version).schema}, 2)
        self.told.append(f"{how} on {version} {predicate}")

        def act(module: Any, uri: str) -> None:
            dataset = module.dataset(uri, version=version)
            if how == "append":
                dataset.insert(table)
            elif how == "delete":
                dataset.delete(predicate)
            elif how == "configure":
                dataset.update_config({"late": "yes"})
            else:
                dataset.optimize.compact_files(target_rows_per_fragment=1000)

        return act

    def on_a_branch(self) -> Act | None:
        """Change a branch: rows, compaction, cleanup, a tag, another branch."""
        names = sorted(lance.dataset(self.uri).branches.list())
        if not names:
            return None
        name, how = (
            self.rng.choice(names),
            self.rng.choice(["append", "delete", "compact", "clean_up", "tag", "branch"]),
        )
        side = lance.dataset(self.uri).checkout_version((name, None))
        table = self.rows({each.name: each.type for each in side.schema}, 3)
        version = self.rng.choice([each["version"] for each in side.versions()])
        predicate, other, keep = self.predicate(), self.new_name("side"), self.rng.choice([1, 2])
        self.told.append(f"{how} on {name}, {version}, {predicate}")

        def act(module: Any, uri: str) -> Any:
            side = module.dataset(uri).checkout_version((name, None))
            found: Any = None
            if how == "append":
                side.insert(table)
            elif how == "delete":
                side.delete(predicate)
            elif how == "compact":
                found = side.optimize.compact_files(target_rows_per_fragment=6).fragments_removed
            elif how == "clean_up":
                found = side.cleanup_old_versions(
                    retain_versions=keep, error_if_tagged_old_versions=False, delete_unverified=True
                ).old_versions
            elif how == "tag":
                side.tags.create(other, (name, version))
            else:
                side.create_branch(other, version)
            # The remaining branches and their rows.
            branches = {}
            for each in sorted(module.dataset(uri).branches.list()):
                branch = module.dataset(uri).checkout_version((each, None))
                branches[each] = facts(branch, self.stable)
            return found, branches

        return act

    def copy_by_reference(self) -> Act:
        version = self.rng.choice([each["version"] for each in lance.dataset(self.uri).versions()])
        self.told.append(str(version))

        def act(module: Any, uri: str) -> Any:
            target = f"{uri}-copy"
            shutil.rmtree(target, ignore_errors=True)
            copy = module.dataset(uri).shallow_clone(target, version)
            copy.delete("id % 5 = 2")
            found = [facts(each.dataset(target), self.stable) for each in (lancetable, lance)]
            assert found[0] == found[1]
            shutil.rmtree(target)
            return (found[0],)

        return act

    def column_of_a_fragment(self) -> Act | None:
        """Replace values of a column in one fragment (Update)."""
        columns = self.columns
        able = [name for name in columns if name[0] == "n"]
        fragments = [each for each in lance.dataset(self.uri).get_fragments() if each.count_rows()]
        if not able or not fragments:
            return None
        name, number = self.rng.choice(able), self.rng.choice(fragments).fragment_id
        kind = columns[name]
        self.told.append(f"{name} of {number}")

        def act(module: Any, uri: str) -> None:
            dataset = module.dataset(uri)
            fragment = dataset.get_fragment(number)
            ids = fragment.to_table(columns=["id"], with_row_id=True)
            even = ids.filter(pc.equal(pc.bit_wise_and(ids["id"], 1), 0))
            ids = even if len(even) else ids
            new = pa.table({"_rowid": ids["_rowid"], name: ids["id"].cast(kind)})
            updated, fields = fragment.update_columns(new)
            operation = module.LanceOperation.Update(
                updated_fragments=[updated], fields_modified=fields, update_mode="rewrite_columns"
            )
            module.LanceDataset.commit(uri, operation, read_version=dataset.version)

        return act

    def replaced_file(self) -> Act | None:
        fragments = list(lance.dataset(self.uri).get_fragments())
        if not fragments:
            return None
        picked = self.rng.choice(fragments).metadata
        schema = lance.dataset(self.uri).lance_schema.fields()
        names = {field.id(): field.name() for field in schema}
        able = [each for each in picked.files if all(names.get(one, "").startswith("n") for one in each.fields)]
        if not able:
            return None
        file = self.rng.choice(able)
        path = f"{uuid.UUID(int=self.rng.getrandbits(128))}.lance"
        columns = {names[one]: self.columns[names[one]] for one in file.fields}
        table = self.rows(columns, 0, list(range(picked.physical_rows)))
        self.told.append(f"{sorted(columns)} of {picked.id}")

        def act(module: Any, uri: str) -> None:
            dataset = module.dataset(uri)
            with module.file.LanceFileWriter(f"{uri}/data/{path}", table.schema, version=self.storage) as writer:
                writer.write_batch(table)
            new = module.fragment.DataFile(
                path, file.fields, file.column_indices, file.file_major_version, file.file_minor_version
            )
            group = module.LanceOperation.DataReplacementGroup(picked.id, new)
            operation = module.LanceOperation.DataReplacement([group])
            module.LanceDataset.commit(uri, operation, read_version=dataset.version)

        return act

    def index(self) -> Act | None:
        """Create an index in both tables with pylance, which then uses it for the filters of `facts`."""
        names = [name for name, kind in self.columns.items() if name[0] in ("id", "n", "s") and kind != pa.bool_()]
        name = self.rng.choice(["id", *names])
        self.told.append(name)
        return lambda module, uri: lance.dataset(uri).create_scalar_index(name, "BTREE", replace=True) and None

    # ----------------------------------------------------------------------------------------------------- execution

    def step(self) -> None:
        name = self.rng.choice(STEPS_KNOWN)
        self.exact = True
        act = getattr(self, name)()
        if act is None:
            return
        self.told.append(name)
        # Both libraries use the same path, because branches record the path of their parent.
        shutil.copytree(self.uri, self.before)
        ours = self.done(act, lancetable)
        shutil.move(self.uri, self.twin)
        shutil.move(self.before, self.uri)
        theirs = self.done(act, lance)
        if theirs[0] == PEER_BUG:
            shutil.rmtree(self.uri)
            shutil.move(self.twin, self.uri)
            return
        assert ours[0] == theirs[0], self.told
        same(ours[1], theirs[1], self.exact, self.told)
        if self.rng.random() < 0.5:
            shutil.rmtree(self.twin)
            self.told.append("(theirs)")
        else:
            shutil.rmtree(self.uri)
            shutil.move(self.twin, self.uri)

    def done(self, act: Act, module: Any) -> tuple[Any, dict[str, Any]]:
        """Return the result of a step and the state of the table; both libraries must agree."""
        outcome = self.outcome(act, module, self.uri)
        read = [facts(each.dataset(self.uri), self.stable) for each in (lancetable, lance)]
        same(read[0], read[1], True, self.told)
        for each in (lancetable, lance):
            each.dataset(self.uri).validate()
        return outcome, read[0]

    def outcome(self, act: Act, module: Any, uri: str) -> Any:
        """Return the result of a step; all errors are equal."""
        try:
            found = act(module, uri)
        except Exception as error:
            self.told.append(f"{module.__name__}: {type(error).__name__}: {str(error)[:300]}")
            return PEER_BUG if any(each in str(error) for each in PEER_BUGS) else "error"
        return found if isinstance(found, (dict, tuple, int)) else None


STEPS_KNOWN = [
    *[
        "append",
        "append",
        "append",
        "delete",
        "delete",
        "update",
        "update",
        "merge_insert",
        "merge_insert",
        "add_column",
    ],
    *["overwrite", "truncate", "drop_column", "rename", "cast", "require", "compact", "compact", "clean_up", "restore"],
    *["tag", "branch", "settings", "field_settings", "committed_delete"],
    *["upsert_some_columns", "nested", "written_apart", "late", "late", "on_a_branch", "on_a_branch"],
    *["copy_by_reference", "column_of_a_fragment", "replaced_file", "index"],
]


def facts(dataset: Any, stable: bool) -> dict[str, Any]:
    """Return the properties of a version that the format determines."""
    columns = [*dataset.schema.names, "_rowid", "_rowaddr"]
    if stable:
        columns += ["_row_created_at_version", "_row_last_updated_at_version"]
    return {
        "version": dataset.version,
        "versions": [each["version"] for each in dataset.versions()],
        "schema": dataset.schema.to_string(show_field_metadata=True, show_schema_metadata=False),
        "schema metadata": dataset.schema.metadata,
        "fields": [(field.name(), field.id()) for field in dataset.lance_schema.fields()],
        "greatest field": dataset.max_field_id,
        "rows": dataset.to_table(columns=columns).to_pylist(),
        "found": [
            sorted(dataset.to_table(columns=["id"], filter=each)["id"].to_pylist())
            for each in ("id < 5", "id IN (3, 8, 11)", "id IS NULL")
        ],
        "fragments": [fragment_facts(each) for each in dataset.get_fragments()],
        "settings": (dataset.config(), dataset.metadata, dataset.schema_metadata, dataset.data_storage_version),
        "tags": {name: (tag["branch"], tag["version"]) for name, tag in dataset.tags.list().items()},
    }


def fragment_facts(fragment: Any) -> Any:
    metadata = fragment.metadata
    files = [
        (each.fields, each.column_indices, each.file_major_version, each.file_minor_version) for each in metadata.files
    ]
    return metadata.id, metadata.physical_rows, fragment.num_deletions, files


def loose(made: dict[str, Any]) -> dict[str, Any]:
    """Return a version with sorted rows and row ids: ids of new rows may be assigned to any of them."""
    rows = [{k: v for k, v in row.items() if k not in ("_rowid", "_rowaddr")} for row in made["rows"]]
    ids = sorted(row["_rowid"] for row in made["rows"])
    return {**made, "rows": sorted(rows, key=lambda row: row["id"]), "row ids": ids}


def same(one: dict[str, Any], other: dict[str, Any], exact: bool, told: Any) -> None:
    if not exact:
        one, other = loose(one), loose(other)
    for question in one:
        assert one[question] == other[question], (question, told)


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
@pytest.mark.parametrize("storage", ["2.0", "2.1", "2.2"])
def test_both_libraries_produce_the_same_table(storage: str, stable: bool, tmp_path: Path) -> None:
    for seed in range(2 * SCALE):
        root = tmp_path / str(seed)
        root.mkdir()
        twins = Twins(root, seed, storage, stable)
        for _ in range(STEPS):
            twins.step()
        shutil.rmtree(root)
