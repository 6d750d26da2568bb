"""Operations, transactions and fragment metadata as users build, print and send them."""

from __future__ import annotations

import dataclasses
import json
import pickle
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable import DatasetBasePath, FragmentMetadata, Index, IndexFile, LanceOperation, Transaction
from lancetable.errors import InvalidInputError, InvalidOperationError, UnsupportedFeatureError
from lancetable.format import transaction as tx
from lancetable.fragment import DataFile, DeletionFile, RowDatasetVersionMeta, RowIdMeta, RowIdSequence
from lancetable.operation import FROM_FORMAT
from lancetable.rowids.row_id_sequence import RowIdSequence as Sequence
from lancetable.schema import LanceSchema

FILE = DataFile("0101.lance", [0, 1], [0, 1], 2, 0, 570)
DELETIONS = DeletionFile(1, 2151212854833476971, "array", 1)
FRAGMENT = FragmentMetadata(3, [FILE], 4, DELETIONS)
PLAIN = FragmentMetadata(0, [FILE], 4)
SCHEMA = LanceSchema.from_pyarrow(pa.schema({"a": pa.int64(), "b": pa.string()}))
INDEX = Index(
    "12345678-1234-5678-1234-567812345678",
    "a_idx",
    [0],
    3,
    {0, 7},
    1,
    datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=timezone.utc),
    None,
    [IndexFile("page_data.lance", 100)],
    ("/lance.index.pb.BTreeIndexDetails", b"\x08\x01"),
    [1],
)

OPERATIONS = [
    LanceOperation.Append([PLAIN]),
    LanceOperation.Overwrite(SCHEMA, [PLAIN]),
    LanceOperation.Delete([FRAGMENT], [7, 8], "a > 3"),
    LanceOperation.Update([1], [FRAGMENT], [PLAIN], [0], [1], "rewrite_columns", {3: b"abc"}),
    LanceOperation.Merge([FRAGMENT], SCHEMA, True),
    LanceOperation.Project(SCHEMA),
    LanceOperation.Restore(2),
    LanceOperation.Rewrite([LanceOperation.RewriteGroup([FRAGMENT], [PLAIN])], []),
    LanceOperation.DataReplacement([LanceOperation.DataReplacementGroup(3, FILE)]),
    LanceOperation.UpdateConfig(
        LanceOperation.UpdateMap({"k": None}, True), None, None, {1: LanceOperation.UpdateMap({"a": "b"})}
    ),
    LanceOperation.Clone(True, "x", 1, "p", None),
    LanceOperation.CreateIndex([INDEX], [dataclasses.replace(INDEX, created_at=None, files=None, index_details=None)]),
    LanceOperation.Rewrite(
        [],
        [
            LanceOperation.RewrittenIndex(
                INDEX.uuid, INDEX.uuid.replace("1", "2"), "/lance.index.pb.BTreeIndexDetails", b"", 1
            )
        ],
    ),
    LanceOperation.Overwrite(SCHEMA, [], [DatasetBasePath("/some/where", "n", True, 3)]),
]


def test_fragment_json_has_the_keys_of_pylance_in_its_order() -> None:
    assert FRAGMENT.to_json() == {
        "id": 3,
        "files": [
            {
                "fields": [0, 1],
                "column_indices": [0, 1],
                "file_major_version": 2,
                "file_minor_version": 0,
                "file_size_bytes": 570,
                "base_id": None,
                "path": "0101.lance",
            }
        ],
        "overlays": [],
        "physical_rows": 4,
        "deletion_file": {
            "read_version": 1,
            "id": 2151212854833476971,
            "file_type": "array",
            "num_deleted_rows": 1,
            "base_id": None,
        },
        "row_id_meta": None,
        "created_at_version_meta": None,
        "last_updated_at_version_meta": None,
    }
    order = "id files overlays physical_rows deletion_file row_id_meta created_at_version_meta"
    assert " ".join(FRAGMENT.to_json()) == f"{order} last_updated_at_version_meta"


@pytest.mark.parametrize(
    "fragment",
    [
        PLAIN,
        FRAGMENT,
        FragmentMetadata(1, [], 0),
        FragmentMetadata(1, [FILE], None, DeletionFile(1, 2, "array")),
        FragmentMetadata(
            1, [FILE], 2, None, RowIdMeta(b"\x01\x02"), RowDatasetVersionMeta(b"\x03"), RowDatasetVersionMeta(b"")
        ),
    ],
)
def test_fragments_round_trip_through_json_pickle_and_the_frozen_form(fragment: FragmentMetadata) -> None:
    assert FragmentMetadata.from_json(json.dumps(fragment.to_json())) == fragment
    assert pickle.loads(pickle.dumps(fragment)) == fragment
    assert FragmentMetadata.from_format(fragment.to_format()) == fragment


def test_fragment_json_of_pylance_reads_the_same() -> None:
    lance = pytest.importorskip("lance")
    theirs = lance.FragmentMetadata.from_json(json.dumps(FRAGMENT.to_json()))
    assert theirs.to_json() == FRAGMENT.to_json()
    assert repr(theirs) == repr(FRAGMENT)
    assert theirs.deletion_file.path(3) == DELETIONS.path(3) == "_deletions/3-1-2151212854833476971.arrow"


def test_counts_of_a_fragment() -> None:
    assert (FRAGMENT.num_rows, FRAGMENT.num_deletions, FRAGMENT.data_files()) == (3, 1, [FILE])
    unknown = FragmentMetadata(3, [FILE], None, DeletionFile(1, 2, "array"))
    assert (unknown.num_rows, unknown.num_deletions) == (None, None)
    assert FILE.field_ids() == [0, 1]
    assert DELETIONS.path(3, "s3://b/t/") == "s3://b/t/_deletions/3-1-2151212854833476971.arrow"


def test_parts_of_a_fragment_round_trip_through_json() -> None:
    assert DeletionFile.from_json(DELETIONS.json()) == DELETIONS
    assert RowIdMeta.from_json('{"Inline":[1,2]}') == RowIdMeta(b"\x01\x02") == RowIdMeta.from_dict({"Inline": [1, 2]})
    assert RowDatasetVersionMeta(b"\x07").json() == '{"inline":[7]}'
    ids = RowIdSequence(Sequence.from_range(5, 8))
    assert (list(ids), len(ids), ids.to_pyarrow().to_pylist()) == ([5, 6, 7], 3, [5, 6, 7])
    assert list(RowIdSequence.from_inline_metadata(ids.to_inline_metadata())) == [5, 6, 7]
    with pytest.raises(TypeError):
        RowIdSequence.from_inline_metadata(b"")  # type: ignore[arg-type]  # the point


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"id": 1}',
        '{"id": 1, "files": [{"fields": [1]}], "physical_rows": 2}',
        '{"id": 1, "files": [{"path": "../../etc/passwd", "fields": [], "column_indices": []}], "physical_rows": 2}',
    ],
)
def test_malformed_fragment_json_is_rejected(text: str) -> None:
    with pytest.raises(InvalidInputError):
        FragmentMetadata.from_json(text)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: type(operation).__name__)
def test_operations_round_trip_through_bytes(operation: LanceOperation.BaseOperation) -> None:
    transaction = Transaction(5, operation, transaction_properties={"k": "v"})
    read = Transaction.from_format(tx.Transaction.from_bytes(transaction.to_format().to_bytes()))
    assert read == transaction


def test_every_operation_of_the_format_has_a_public_form() -> None:
    # The rest comes back as LanceOperation.Other.
    others = {tx.ReserveFragments, tx.UpdateMemWalState, tx.UpdateBases, tx.DataOverlay}
    assert set(FROM_FORMAT) & set(tx.OPERATIONS.values()) | others == set(tx.OPERATIONS.values())
    read = Transaction.from_format(tx.Transaction.create(1, tx.ReserveFragments(3)))
    assert isinstance(read.operation, LanceOperation.Other) and read.operation.name == "ReserveFragments"
    assert read.to_format().operation == tx.ReserveFragments(3)


def test_representations_equal_those_of_pylance() -> None:
    lance = pytest.importorskip("lance")
    ours, theirs = LanceOperation, lance.LanceOperation
    for name, arguments in (
        ("Restore", (1,)),
        ("Update", ()),
        ("UpdateMap", ({"a": None},)),
        ("Clone", (True, "x", 1, "p", None)),
        ("Append", ([],)),
        ("Delete", ([], [1], "x")),
    ):
        assert repr(getattr(ours, name)(*arguments)) == repr(getattr(theirs, name)(*arguments))
    for name in (name for name in dir(theirs) if not name.startswith("_")):
        assert hasattr(ours, name), name
        if dataclasses.is_dataclass(getattr(theirs, name)):
            fields = [field.name for field in dataclasses.fields(getattr(theirs, name))]
            assert [field.name for field in dataclasses.fields(getattr(ours, name))] == fields


def test_arrow_schemas_are_numbered_from_0() -> None:
    operation = LanceOperation.Overwrite(pa.schema({"a": pa.int64(), "b": pa.string()}), [])
    assert operation.to_format().schema == SCHEMA.to_format()


@pytest.mark.parametrize(
    "make",
    [
        lambda: LanceOperation.Append(1),
        lambda: LanceOperation.Append([1]),
        lambda: LanceOperation.Append("ab"),
        lambda: LanceOperation.Overwrite(3, []).to_format(),
        lambda: LanceOperation.Delete([], [], 3).to_format(),
        lambda: LanceOperation.Restore("x").to_format(),
        lambda: LanceOperation.CreateIndex([3], []).to_format(),
        lambda: LanceOperation.Overwrite(SCHEMA, [], [object()]).to_format(),
        lambda: Transaction(1, "no operation").to_format(),
        lambda: Transaction("1", LanceOperation.Restore(1)).to_format(),
    ],
)
def test_arguments_of_wrong_types_are_rejected(make: Any) -> None:
    with pytest.raises(TypeError):
        make()


@pytest.mark.parametrize(
    "operation",
    [
        LanceOperation.DataOverlay([]),
    ],
)
def test_unsupported_operations_are_rejected(operation: LanceOperation.BaseOperation) -> None:
    with pytest.raises(UnsupportedFeatureError):
        operation.to_format()


def test_invalid_numbers_in_fragments_are_rejected() -> None:
    for fragment in (
        FragmentMetadata(-1, [], 1),
        FragmentMetadata(1, [], -1),
        FragmentMetadata(1, [DataFile("/x", [])], 1),
    ):
        with pytest.raises(InvalidInputError):
            fragment.to_format()
    with pytest.raises(InvalidInputError, match="update_mode"):
        LanceOperation.Update(update_mode="x").to_format()


def test_fragment_json_keeps_zero_deleted_rows() -> None:
    deletions = {"read_version": 1, "id": 7, "file_type": "array", "num_deleted_rows": 0, "base_id": None}
    value = {**json.loads(json.dumps(PLAIN.to_json())), "deletion_file": deletions}
    fragment = FragmentMetadata.from_json(json.dumps(value))
    assert fragment.deletion_file == DeletionFile(1, 7, "array", 0)
    assert fragment.to_json()["deletion_file"]["num_deleted_rows"] == 0


@pytest.mark.parametrize(
    "change",
    [
        {"row_id_meta": {"column": 1}},
        {"row_id_meta": {"Inline": [1], "z": 2}},
        {"row_id_meta": {"external": {"path": "a", "offset": 0, "size": 1}}},
        {"deletion_file": 3},
    ],
)
def test_fragment_json_with_an_unknown_part_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        FragmentMetadata.from_json(json.dumps({**PLAIN.to_json(), **change}))


def test_rows_of_a_fragment_that_is_committed_without_a_row_count_are_counted_by_readers(tmp_path: Path) -> None:
    lance = pytest.importorskip("lance")
    table = pa.table({"a": range(4)})
    (written,) = lancetable.fragment.write_fragments(table, tmp_path / "t")
    fragment = FragmentMetadata.from_json(json.dumps({**written.to_json(), "physical_rows": None}))
    created = lancetable.LanceDataset.commit(tmp_path / "t", LanceOperation.Overwrite(table.schema, [fragment]))
    created.delete("a = 2")
    for library in (lancetable, lance):
        dataset = library.dataset(tmp_path / "t")
        assert (dataset.count_rows(), dataset.to_table()["a"].to_pylist()) == (3, [0, 1, 3])
        assert dataset.get_fragments()[0].metadata.physical_rows is None
    with pytest.raises(InvalidOperationError, match="number of rows"):
        lancetable.LanceDataset.commit(
            tmp_path / "ids", LanceOperation.Overwrite(table.schema, [fragment]), enable_stable_row_ids=True
        )


def test_fragment_accepts_numpy_integers() -> None:
    fragment = FragmentMetadata(np.int64(0), [FILE], np.int64(4))
    assert fragment.to_format() == PLAIN.to_format()


def test_data_file_has_the_dataclass_fields_of_pylance() -> None:
    assert [field.name for field in dataclasses.fields(DataFile)][:2] == ["_path", "fields"]
    assert type(FILE.asdict()["path"]) is str


def test_operation_ignores_attributes_that_are_not_fields() -> None:
    operation = LanceOperation.Append([PLAIN])
    operation.note = 1
    assert operation.to_format() == LanceOperation.Append([PLAIN]).to_format()
