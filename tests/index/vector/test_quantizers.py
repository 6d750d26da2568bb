"""Files of vector indexes of pylance: parsed, serialized to the same bytes, and encoded to the same codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vector_tables as tables
from hypothesis import given
from hypothesis import strategies as st
from vector_tables import CASES, Case

import lancetable
from lancetable.errors import CorruptFileError
from lancetable.index.distances import Metric
from lancetable.index.segments import IndexSegment, index_segments
from lancetable.index.vector.ivf_model import IvfModel
from lancetable.index.vector.open_index import OpenVectorIndex
from lancetable.index.vector.product_quantizer import ProductQuantizer
from lancetable.index.vector.quantizer import METADATA_KEY, metadata_text, normalized
from lancetable.index.vector.scalar_quantizer import ScalarQuantizer
from lancetable.proto import index_pb2


def segment_of(uri: str) -> IndexSegment:
    (segment,) = index_segments(lancetable.dataset(uri).table_version)
    return segment


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_settings_and_models_are_serialized_as_pylance_does(tables_dir: Path, case: Case) -> None:
    segment = segment_of(tables.built(tables_dir, case))
    index = OpenVectorIndex(segment.files)
    assert index.type == case.kind
    assert index.metric.value == case.metric
    auxiliary = segment.files.open("auxiliary.idx")
    number = 2 if index.quantizer.buffer() else None
    assert metadata_text(index.quantizer, number) == auxiliary.text(METADATA_KEY)
    if number is not None:
        assert index.quantizer.buffer() == bytes(auxiliary.buffer(number))
    for name in ("index.idx", "auxiliary.idx"):
        file = segment.files.open(name)
        data = bytes(file.buffer(file.number("lance:ivf", 0)))
        assert IvfModel.parse(data, file.num_rows, file.path).serialize() == data


@pytest.mark.parametrize("case", [case for case in CASES if not case.stable], ids=lambda case: case.name)
def test_vectors_are_encoded_as_pylance_does(tables_dir: Path, case: Case) -> None:
    uri = tables.built(tables_dir, case)
    index = OpenVectorIndex(segment_of(uri).files)
    values = tables.vectors(tables.ROWS, case.dtype)
    if case.metric == "cosine":
        values = normalized(values)
    differing = 0
    for number in range(index.num_partitions):
        partition = index.partition(number)
        fragments, offsets = np.divmod(partition.row_ids, 1 << 32)
        rows = (fragments * (tables.ROWS // 2) + offsets).astype(np.int64)
        residuals = index.residuals(values[rows], number)
        codes = index.quantizer.encode(residuals)
        if isinstance(index.quantizer, ProductQuantizer):
            codes = index.quantizer.of_stored(index.quantizer.to_stored(codes)).T
            partition_codes = partition.codes.T
        else:
            partition_codes = partition.codes
        if index.quantizer.kind == "FLAT":
            np.testing.assert_allclose(partition_codes, codes.astype(partition_codes.dtype), rtol=1e-3, atol=1e-3)
        else:
            differing += int((partition_codes != codes).any(axis=1).sum())
    # Numbers on the border of two codes are rounded differently.
    assert differing <= 0.02 * tables.ROWS


@given(st.integers(0, 30), st.integers(1, 9), st.randoms())
def test_a_model_survives_a_round_trip(num_partitions: int, dim: int, random: object) -> None:
    lengths = np.random.default_rng(num_partitions).integers(0, 100, num_partitions)
    centroids = np.arange(num_partitions * dim, dtype=np.float32).reshape(num_partitions, dim)
    model = IvfModel.of_lengths(lengths, centroids)
    read = IvfModel.parse(model.serialize(), int(lengths.sum()), "path")
    assert read.num_partitions == num_partitions
    np.testing.assert_array_equal(read.offsets, model.offsets)
    np.testing.assert_array_equal(read.lengths, lengths)
    if num_partitions:
        np.testing.assert_array_equal(read.centroids, centroids)
        assert read.rows(0) == range(int(lengths[0]))


def with_centroids(**tensor: Any) -> index_pb2.IVF:
    return index_pb2.IVF(offsets=[0], lengths=[5], centroids_tensor=index_pb2.Tensor(**tensor))


@pytest.mark.parametrize(
    ("message", "num_rows"),
    [
        (index_pb2.IVF(offsets=[0, 5], lengths=[5]), 5),
        (index_pb2.IVF(offsets=[0], lengths=[6]), 5),
        (index_pb2.IVF(offsets=[2**64 - 1], lengths=[6]), 5),
        (index_pb2.IVF(offsets=[0], lengths=[4]), 5),
        (index_pb2.IVF(offsets=[0], lengths=[5], centroids=[]), 6),
        (index_pb2.IVF(offsets=[0, 5], lengths=[5, 0], centroids=[1, 2, 3]), 5),
        (with_centroids(data_type=2, shape=[1, 3]), 5),
        (with_centroids(data_type=2, shape=[3], data=bytes(12)), 5),
        (with_centroids(data_type=2, shape=[2, 1], data=bytes(8)), 5),
        (with_centroids(data_type=5, shape=[1, 1], data=bytes(4)), 5),
    ],
)
def test_a_damaged_model_is_refused(message: index_pb2.IVF, num_rows: int) -> None:
    with pytest.raises(CorruptFileError):
        IvfModel.parse(message.SerializeToString(), num_rows, "path")


def test_a_truncated_model_is_refused() -> None:
    with pytest.raises(CorruptFileError):
        IvfModel.parse(b"\x12\x05\x00", 0, "path")


@given(st.integers(1, 40), st.booleans())
def test_codes_of_a_partition_survive_a_round_trip(num_rows: int, is_transposed: bool) -> None:
    codebook = np.zeros((6, 16, 2), np.float32)
    quantizer = ProductQuantizer(Metric.L2, codebook, is_transposed=is_transposed)
    codes = np.random.default_rng(num_rows).integers(0, 256, (num_rows, quantizer.code_bytes)).astype(np.uint8)
    np.testing.assert_array_equal(quantizer.of_stored(quantizer.to_stored(codes)).T, codes)


def test_numbers_outside_of_the_bounds_are_limited() -> None:
    quantizer = ScalarQuantizer(Metric.L2, 4, -1.0, 1.0)
    codes = quantizer.encode(np.array([[-5.0, -1.0, 0.0, 5.0]], np.float32))
    assert codes.tolist() == [[0, 0, 127, 255]]
