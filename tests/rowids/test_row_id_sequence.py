"""Row id sequences: bytes, slices, masks, merged arrays, and invalid messages."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError
from lancetable.proto import rowids_pb2
from lancetable.rowids import RowIdSequence, encoded_u64_array
from lancetable.rowids.row_id_sequence import MAX_ROWS
from lancetable.rowids.segment import Range, build


@st.composite
def sequences(draw: st.DrawFn) -> tuple[RowIdSequence, list[int]]:
    """Draw a sequence of several segments of any form, and its ids."""
    parts = draw(
        st.lists(
            st.one_of(
                st.builds(lambda start, n: list(range(start, start + n)), st.integers(0, 50), st.integers(0, 12)),
                st.lists(st.integers(0, 300), max_size=10),
                st.sets(st.integers(0, 40), max_size=20).map(sorted),
            ),
            max_size=4,
        )
    )
    segments = tuple(build(np.array(part, np.uint64)) for part in parts)
    return RowIdSequence(segments), [each for part in parts for each in part]


@given(sequences())
def test_bytes_round_trip(case):
    sequence, ids = case
    again = RowIdSequence.from_bytes(sequence.to_bytes(), len(ids))
    assert again.values().tolist() == ids
    assert again.num_rows == len(ids)
    assert RowIdSequence.from_values(np.array(ids, np.uint64)).values().tolist() == ids


def arrays_of(parts: list[list[int]], *, sorts: bool) -> rowids_pb2.RowIdSequence:
    """Return a sequence with one array for each part, as other writers store the rows of each batch that they moved."""
    message = rowids_pb2.RowIdSequence()
    for part in parts:
        segment = message.segments.add()
        array = segment.sorted_array if sorts else segment.array
        array.CopyFrom(encoded_u64_array.encode(np.array(part, np.uint64)))
    return message


@pytest.mark.parametrize("spread", [50, 2**17, 2**40], ids=["u16", "u32", "u64"])
@pytest.mark.parametrize("sorts", [False, True])
def test_hundreds_of_arrays_are_merged(sorts: bool, spread: int) -> None:
    rng = np.random.default_rng(8)
    parts = [rng.choice(2**20 + 60 * spread, 30, replace=False) * 3 + 100 * k * spread for k in range(2)]
    parts += [rng.integers(0, spread, 50) + 7 * k * spread for k in range(2, 100)]
    values = [np.unique(part).tolist() if sorts else part.tolist() for part in parts]
    values.insert(40, [])
    message = arrays_of(values, sorts=sorts)
    message.segments.add().range.end = 5
    message.segments[-1].range.start = 2
    message.segments.extend(arrays_of(values[::-1], sorts=sorts).segments)
    ids = [each for part in values for each in part]
    expected = [*ids, 2, 3, 4, *(each for part in values[::-1] for each in part)]
    found = RowIdSequence.from_bytes(message.SerializeToString(), len(expected))
    assert found.values().tolist() == expected
    assert len(found.segments) == 3
    assert RowIdSequence.from_bytes(found.to_bytes()).values().tolist() == expected


@pytest.mark.parametrize("spread", [50, 2**17], ids=["u16", "u32"])
@pytest.mark.parametrize("sorts", [False, True])
def test_sequence_of_arrays_only_is_one_segment(sorts: bool, spread: int) -> None:
    rng = np.random.default_rng(9)
    for gap in (0, 1, 2 * spread):  # overlapping, adjacent or apart; the first starts at 0, some are empty
        parts = [rng.integers(0, spread, 40) + k * gap for k in range(60)]
        values = [np.unique(part).tolist() if sorts else part.tolist() for part in parts]
        values[7] = values[30] = []
        values[0][0] = 0
        message = arrays_of(values, sorts=sorts)
        for at in (7, 30):
            (message.segments[at].sorted_array if sorts else message.segments[at].array).u16_array.base = 3
        found = RowIdSequence.from_bytes(message.SerializeToString())
        assert found.values().tolist() == [each for part in values for each in part]
        assert len(found.segments) == 1
        assert (found.segments[0].oneof_case == "sorted_array") == (sorts and gap > spread)


def test_invalid_array_among_hundreds_raises() -> None:
    parts = [[10 * k, 10 * k + 3, 10 * k + 5] for k in range(100)]
    message = arrays_of(parts, sorts=True)
    # Values ascend within an array; an earlier array may have greater ones.
    message.segments[3].sorted_array.u16_array.base = 5
    assert RowIdSequence.from_bytes(message.SerializeToString()).values()[9:12].tolist() == [5, 8, 10]
    for offsets in (b"\5\0\3\0\0\0", b"\5\0\5\0", b"\5\0\3"):
        message.segments[50].sorted_array.u16_array.offsets = offsets
        with pytest.raises(CorruptFileError):
            RowIdSequence.from_bytes(message.SerializeToString())
    message.segments[50].sorted_array.u16_array.offsets = b"\0\0\1\0"
    message.segments[50].sorted_array.u16_array.base = 2**64 - 1
    with pytest.raises(CorruptFileError, match="64 bits"):
        RowIdSequence.from_bytes(message.SerializeToString())


@given(sequences(), st.data())
def test_slice_equals_that_of_a_list(case, data):
    sequence, ids = case
    start = data.draw(st.integers(0, len(ids)))
    end = data.draw(st.integers(start, len(ids) + 3))
    assert sequence.slice(start, end).values().tolist() == ids[start:end]


@given(sequences(), st.data())
def test_mask_removes_deleted_rows(case, data):
    sequence, ids = case
    deleted = data.draw(st.sets(st.sampled_from(range(len(ids))))) if ids else set()
    live = [each for offset, each in enumerate(ids) if offset not in deleted]
    assert sequence.mask(np.array(list(deleted), np.uint32)).values().tolist() == live


@given(sequences(), sequences())
def test_concat_joins_ids(first, second):
    assert RowIdSequence.concat([first[0], second[0]]).values().tolist() == first[1] + second[1]


@given(sequences(), st.data())
def test_rechunk_splits_by_sizes(case, data):
    sequence, ids = case
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4)))
    bounds = [0, *cuts, len(ids)]
    sizes = [end - start for start, end in itertools.pairwise(bounds)]
    chunks = sequence.rechunk(sizes)
    assert [chunk.num_rows for chunk in chunks] == sizes
    assert [each for chunk in chunks for each in chunk.values().tolist()] == ids
    with pytest.raises(ValueError, match="add up"):
        sequence.rechunk([*sizes, 1])


def test_adjacent_ranges_are_merged():
    joined = RowIdSequence.concat([RowIdSequence.from_range(20, 50), RowIdSequence.from_range(50, 100)])
    assert joined.segments == (Range(20, 100),)
    assert joined.as_range == Range(20, 100)
    apart = RowIdSequence.concat([RowIdSequence.from_range(20, 50), RowIdSequence.from_range(0, 20)])
    assert apart.segments == (Range(20, 50), Range(0, 20))
    assert apart.as_range is None
    assert RowIdSequence().as_range == Range(0, 0)


def test_sequence_of_2_to_63_rows_is_refused():
    message = rowids_pb2.RowIdSequence()
    message.segments.add().range.end = 2**63
    data = message.SerializeToString()
    for num_rows in (None, 10):
        with pytest.raises(CorruptFileError, match=str(2**63)) as caught:
            RowIdSequence.from_bytes(data, num_rows, "some/path")
        assert caught.value.path == "some/path"
    assert RowIdSequence.from_bytes(RowIdSequence.from_range(0, MAX_ROWS).to_bytes()).num_rows == MAX_ROWS


def test_length_other_than_that_of_the_fragment_raises():
    data = RowIdSequence.from_range(5, 15).to_bytes()
    assert RowIdSequence.from_bytes(data, 10).num_rows == 10
    for num_rows in (9, 11, 0):
        with pytest.raises(CorruptFileError, match="found 10"):
            RowIdSequence.from_bytes(data, num_rows)
    with pytest.raises(CorruptFileError, match="malformed"):
        RowIdSequence.from_bytes(b"\xff")


@given(sequences())
def test_pylance_reads_serialized_sequences(case):
    lance_fragment = pytest.importorskip("lance.fragment")
    sequence, ids = case
    carrier = {"id": 0, "files": [], "physical_rows": len(ids), "row_id_meta": {"Inline": list(sequence.to_bytes())}}
    metadata = lance_fragment.FragmentMetadata.from_json(json.dumps(carrier)).row_id_meta
    theirs = lance_fragment.RowIdSequence.from_inline_metadata(metadata)
    assert theirs.to_pyarrow().to_pylist() == ids


@pytest.mark.parametrize("deleted", [[], [3], [1, 2, 3, 50], list(range(0, 100, 2)), list(range(95))])
def test_compacted_bytes_are_those_of_pylance(tmp_path, deleted):
    lance = pytest.importorskip("lance")
    path = str(tmp_path / "t")
    dataset = lance.write_dataset(
        pa.table({"a": range(100)}), path, enable_stable_row_ids=True, max_rows_per_file=60, data_storage_version="2.0"
    )
    if deleted:
        dataset.delete(f"a in ({', '.join(map(str, deleted))})")
    dataset.optimize.compact_files()
    (fragment,) = dataset.get_fragments()
    theirs = bytes(fragment.metadata.to_json()["row_id_meta"]["Inline"])
    parsed = RowIdSequence.from_bytes(theirs, fragment.physical_rows)
    assert parsed.values().tolist() == sorted(set(range(100)) - set(deleted))
    sources = [RowIdSequence.from_range(0, 60), RowIdSequence.from_range(60, 100)]
    first = np.array([each for each in deleted if each < 60], np.uint32)
    second = np.array([each - 60 for each in deleted if each >= 60], np.uint32)
    ours = RowIdSequence.concat([sources[0].mask(first), sources[1].mask(second)])
    assert ours.to_bytes() == theirs
