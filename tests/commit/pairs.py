"""Pairs of operations prepared on one version and committed by either library, and the resulting tables.

`first` and `second` are prepared on version 1; `first` is committed as version 2, then `second`. Both libraries get the
same operation with the same files, so that outcome and resulting manifest can be compared.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import lance.commit
import pyroaring
from google.protobuf import json_format
from lance.optimize import Compaction

import lancetable
from lancetable.commit.commit_loop import commit_transaction
from lancetable.errors import CommitConflictError, RetryableCommitConflictError
from lancetable.format import transaction as tx
from lancetable.format.transaction import Transaction
from lancetable.fragment_metadata import FragmentMetadata
from lancetable.proto import table_pb2
from lancetable.table import deletion_vectors, transactions
from lancetable.table.version import TableVersion, checkout, latest, open_version


@dataclass(frozen=True)
class Prepared:
    """An operation whose files are already written, with the newly deleted rows if known."""

    operation: tx.Operation
    affected_rows: Mapping[int, deletion_vectors.DeletionVector] | None = None


def copy_table(template: Path, target: Path) -> Path:
    """Copy a table with hard links to the immutable files."""
    shutil.copytree(template, target, copy_function=os.link)
    hint = target / "_versions" / "latest_version_hint.json"
    if hint.exists():  # the one file that is replaced
        hint.unlink()
        shutil.copy(template / "_versions" / hint.name, hint)
    return target


def outcome(act: Callable[[], Any]) -> str:
    """Return "ok", "R" for a retryable conflict, or "X" for an incompatible one."""
    try:
        act()
    except RetryableCommitConflictError:
        return "R"
    except CommitConflictError:
        return "X"
    except lance.commit.CommitConflictError as error:
        return "R" if error.retryable else "X"
    return "ok"


def commit_ours(uri: str, prepared: Prepared, **options: Any) -> TableVersion:
    """Commit a prepared operation with lancetable."""
    transaction = Transaction.create(1, prepared.operation)
    return commit_transaction(open_version(uri, 1), transaction, affected_rows=prepared.affected_rows, **options)


def commit_theirs(uri: str, prepared: Prepared) -> None:
    """Commit a prepared operation with pylance."""
    operation = prepared.operation
    if isinstance(operation, tx.UpdateBases):
        bases = [
            lance.DatasetBasePath(base.path, base.name, base.is_dataset_root, base.id or None)
            for base in operation.new_bases
        ]
        raised(lambda: lance.dataset(uri, version=1).add_bases(bases))
    elif isinstance(operation, tx.ReserveFragments):
        reserve_with_pylance(uri)
    else:
        lance.LanceDataset.commit(uri, to_pylance(operation), read_version=1)


def raised(act: Callable[[], Any]) -> None:
    """Convert OSError, which some pylance calls raise for conflicts, to a conflict error."""
    try:
        act()
    except lance.commit.CommitConflictError:
        raise
    except (OSError, ValueError) as error:
        text = str(error)
        if "Retryable commit conflict" in text:
            raise lance.commit.CommitConflictError(text, retryable=True) from error
        if "Incompatible transaction" in text:
            raise lance.commit.CommitConflictError(text, retryable=False) from error
        raise


def reserve_with_pylance(uri: str) -> None:
    """Commit a ReserveFragments with pylance by a compaction, and remove the Rewrite that may follow it."""
    stale = lance.dataset(uri, version=1)
    before = set(manifests(uri))
    plan = Compaction.plan(stale, {"target_rows_per_fragment": 1000})
    results = [task.execute(stale) for task in plan.tasks]
    try:
        raised(lambda: Compaction.commit(stale, results))
    except lance.commit.CommitConflictError:
        if not set(manifests(uri)) - before:
            raise
    after = sorted(set(manifests(uri)) - before)  # newest first
    for name in after[:-1]:
        (Path(uri) / "_versions" / name).unlink()
    (Path(uri) / "_versions" / "latest_version_hint.json").unlink(missing_ok=True)


def manifests(uri: str) -> list[str]:
    return sorted(name for name in os.listdir(Path(uri) / "_versions") if name.endswith(".manifest"))


def to_pylance(operation: tx.Operation) -> Any:
    """Convert an operation to the corresponding pylance object."""
    kinds = lance.LanceOperation

    def fragments(given: Any) -> list[Any]:
        described = [FragmentMetadata.from_format(fragment).to_json() for fragment in given]
        return [lance.FragmentMetadata.from_json(json.dumps(each)) for each in described]

    def update_map(update: tx.UpdateMap | None) -> Any:
        return None if update is None else kinds.UpdateMap(dict(update.entries), update.replace)

    match operation:
        case tx.Append():
            return kinds.Append(fragments(operation.fragments))
        case tx.Overwrite():
            return kinds.Overwrite(operation.schema.to_arrow(), fragments(operation.fragments))
        case tx.Delete():
            return kinds.Delete(
                fragments(operation.updated_fragments), list(operation.deleted_fragment_ids), operation.predicate
            )
        case tx.Update():
            return kinds.Update(
                list(operation.removed_fragment_ids),
                fragments(operation.updated_fragments),
                fragments(operation.new_fragments),
                list(operation.fields_modified),
                list(operation.fields_for_preserving_frag_bitmap),
                operation.mode.name.lower(),
            )
        case tx.Merge():
            schema = operation.schema.to_arrow()
            return kinds.Merge(fragments(operation.fragments), schema, operation.preserves_nullability)
        case tx.Project():
            return kinds.Project(operation.schema.to_arrow(), operation.preserves_nullability)
        case tx.Restore():
            return kinds.Restore(operation.version)
        case tx.UpdateConfig():
            return kinds.UpdateConfig(
                update_map(operation.config),
                update_map(operation.table_metadata),
                update_map(operation.schema_metadata),
                {key: update_map(value) for key, value in operation.field_metadata.items()} or None,
            )
        case tx.DataReplacement():
            return kinds.DataReplacement(
                [
                    kinds.DataReplacementGroup(group.fragment_id, pylance_file(group.new_file))
                    for group in operation.replacements
                ]
            )
        case tx.Rewrite():
            groups = [
                kinds.RewriteGroup(fragments(group.old_fragments), fragments(group.new_fragments))
                for group in operation.groups
            ]
            return kinds.Rewrite(groups, [])
        case tx.CreateIndex():
            return kinds.CreateIndex(
                [pylance_index(index) for index in operation.new_indices],
                [pylance_index(index) for index in operation.removed_indices],
            )
    raise AssertionError(f"pylance has no constructor for {operation}")


def pylance_file(file: Any) -> Any:
    return lance.fragment.DataFile(
        file.path, list(file.fields), list(file.column_indices), file.major, file.minor, file.size_bytes
    )


def pylance_index(index: Any) -> Any:
    covered = set(pyroaring.BitMap.deserialize(index.fragment_bitmap)) if index.fragment_bitmap else set()
    return importlib.import_module("lance.dataset").Index(
        uuid=str(index.uuid),
        name=index.name,
        fields=list(index.fields),
        dataset_version=index.dataset_version,
        fragment_ids=covered,
        index_version=index.index_version,
        index_details=(index.type_url, b""),
    )


# --- resulting tables ------------------------------------------------------------------------------------------------


def state(uri: str) -> dict[str, Any]:
    """Return what is compared of the newest version: manifest, deleted rows, indices, read version and rows.

    Fields that differ from one commit to the next are left out: names of new deletion files, times and the name of the
    writer. Data files are included, because both libraries commit the same files.
    """
    newest = latest(open_version(uri))
    message = table_pb2.Manifest()
    message.CopyFrom(newest.manifest.message)
    vectors = {}
    for fragment in newest.manifest.fragments:
        vector = deletion_vectors.read(newest, fragment)
        vectors[fragment.id] = [] if vector is None else vector.offsets().tolist()
    for fragment in message.fragments:
        fragment.deletion_file.id = 0
        fragment.deletion_file.file_type = 0
        fragment.deletion_file.read_version = 0
    for name in ("timestamp", "writer_version", "transaction_file", "transaction_section", "index_section"):
        message.ClearField(name)  # type: ignore[arg-type]  # the stub wants a literal
    section = newest.file.index_section(newest.store)
    indices = [] if section is None else table_pb2.IndexSection.FromString(section).indices
    transaction = transactions.read(newest.store, newest.base, newest.file)
    assert transaction is not None
    return {
        "manifest": json_format.MessageToDict(message),
        "vectors": vectors,
        "indices": sorted((index.name, index.fragment_bitmap) for index in indices),
        "read version": transaction.read_version,
        "rows": lance.dataset(uri).to_table().to_pylist(),
    }


def difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the differences between two states."""
    flat, other = flatten(found), flatten(wanted)
    return {
        key: (flat.get(key), other.get(key)) for key in flat.keys() | other.keys() if flat.get(key) != other.get(key)
    }


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {k: v for key, item in value.items() for k, v in flatten(item, f"{prefix}/{key}").items()}
    if isinstance(value, list) and prefix.endswith(("fragments", "fields")):
        return {k: v for key, item in enumerate(value) for k, v in flatten(item, f"{prefix}/{key}").items()}
    return {prefix: value}


def check_both_read(uri: str) -> None:
    """Assert that both libraries read the same rows and names at every version."""
    for number in range(1, latest(open_version(uri)).version + 1):
        mine, other = lancetable.dataset(uri, version=number), lance.dataset(uri, version=number)
        assert mine.schema.names == other.schema.names
        assert mine.to_table().to_pylist() == other.to_table().to_pylist(), number
    checkout(open_version(uri), 1)
