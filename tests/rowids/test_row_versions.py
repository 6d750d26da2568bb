"""Row version sequences: bytes, slices, masks, and invalid messages."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError
from lancetable.proto import rowids_pb2
from lancetable.rowids import RowVersionSequence
from lancetable.rowids.segment import build, to_proto

VERSIONS = st.lists(st.sampled_from([1, 2, 3, 2**40]), max_size=30)


def of(versions: list[int]) -> RowVersionSequence:
    return RowVersionSequence.from_values(np.array(versions, np.uint64))


@given(VERSIONS)
def test_sequences_round_trip(versions):
    sequence = of(versions)
    assert sequence.values().tolist() == versions
    assert sequence.values().dtype == np.uint64
    assert sequence.num_rows == len(versions)
    assert RowVersionSequence.from_bytes(sequence.to_bytes(), len(versions)) == sequence


@given(VERSIONS, st.data())
def test_slice_and_mask_equal_those_of_a_list(versions, data):
    start = data.draw(st.integers(0, len(versions)))
    end = data.draw(st.integers(start, len(versions) + 2))
    assert of(versions).slice(start, end) == of(versions[start:end])
    offsets = sorted(data.draw(st.sets(st.sampled_from(range(len(versions)))))) if versions else []
    live = [each for offset, each in enumerate(versions) if offset not in offsets]
    assert of(versions).mask(np.array(offsets, np.uint32)) == of(live)
    changed = [9 if offset in offsets else each for offset, each in enumerate(versions)]
    assert of(versions).with_version(np.array(offsets, np.int64), 9) == of(changed)


@given(VERSIONS, VERSIONS, st.data())
def test_concat_and_rechunk_equal_those_of_a_list(first, second, data):
    both = RowVersionSequence.concat([of(first), of(second)])
    assert both == of(first + second)
    cut = data.draw(st.integers(0, both.num_rows))
    assert both.rechunk([cut, both.num_rows - cut]) == [both.slice(0, cut), both.slice(cut, both.num_rows)]
    with pytest.raises(ValueError, match="add up"):
        both.rechunk([both.num_rows + 1])


def test_ids_of_a_span_are_ignored():
    message = rowids_pb2.RowDatasetVersionSequence()
    for ids, version in ((range(20, 50), 3), (range(50), 3), ([0, 2, 9], 4)):
        run = message.runs.add(version=version)
        run.span.CopyFrom(to_proto(build(np.array(ids, np.uint64))))
    sequence = RowVersionSequence.from_bytes(message.SerializeToString(), 83)
    assert sequence.runs == ((80, 3), (3, 4))


def test_bytes_of_new_rows():
    assert RowVersionSequence.uniform(2, 1).to_bytes() == bytes.fromhex("0a08 0a04 0a02 1002 1001")
    assert RowVersionSequence.uniform(0, 1) == RowVersionSequence()


def test_sequences_of_pylance_are_read(tmp_path):
    lance = pytest.importorskip("lance")
    path = str(tmp_path / "t")
    dataset = lance.write_dataset(
        pa.table({"a": range(10)}), path, enable_stable_row_ids=True, data_storage_version="2.0"
    )
    dataset = lance.write_dataset(pa.table({"a": range(10, 15)}), path, mode="append")
    dataset.update({"a": "a + 100"}, where="a in (3, 12)")
    dataset.optimize.compact_files(target_rows_per_fragment=1000)
    columns = ["_row_created_at_version", "_row_last_updated_at_version"]
    table = dataset.to_table(columns=["a", *columns])
    (fragment,) = dataset.get_fragments()
    metadata = fragment.metadata.to_json()
    for column, key in zip(columns, ("created_at_version_meta", "last_updated_at_version_meta")):
        sequence = RowVersionSequence.from_bytes(bytes(metadata[key]["inline"]), fragment.physical_rows)
        assert sequence.values().tolist() == table[column].to_pylist()
    assert set(table[columns[1]].to_pylist()) == {1, 2, 3}


def test_invalid_sequences_raise():
    with pytest.raises(CorruptFileError, match="malformed"):
        RowVersionSequence.from_bytes(b"\xff")
    data = RowVersionSequence.uniform(5, 1).to_bytes()
    with pytest.raises(CorruptFileError, match="expected 4, found 5") as caught:
        RowVersionSequence.from_bytes(data, 4, "some/path")
    assert caught.value.path == "some/path"
    huge = rowids_pb2.RowDatasetVersionSequence()
    huge.runs.add(version=1).span.range.end = 2**63
    with pytest.raises(CorruptFileError, match="exceeds the limit of"):
        RowVersionSequence.from_bytes(huge.SerializeToString())
    with pytest.raises(CorruptFileError, match="unknown type"):
        RowVersionSequence.from_bytes(bytes.fromhex("0a02 1001"))


@pytest.mark.parametrize("versions", [[], [1, 1, 1], [1, 1, 4]])
def test_offset_beyond_the_sequence_raises(versions: list[int]) -> None:
    sequence = of(versions)
    assert sequence.at(np.arange(len(versions))).tolist() == versions
    with pytest.raises(CorruptFileError, match=f"expected below {len(versions)}, found {len(versions)}"):
        sequence.at(np.array([len(versions)]))
