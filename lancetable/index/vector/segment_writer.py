"""Writing of the two files of a vector index segment.

batches ─► VectorEncoder ─► partition, row and code of each vector ─► PartitionBuffers ─► auxiliary.idx
codes of a partition ─► vectors that they represent ─► graph ─────────────────────────► index.idx
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file import thread_pool
from lancetable.index.distances import Metric
from lancetable.index.kind import ROW, VALUE
from lancetable.index.vector.graph_builder import SCHEMA, PartitionGraph, build_graph
from lancetable.index.vector.hnsw_graph import METADATA_KEY as GRAPHS_KEY
from lancetable.index.vector.ivf_model import IvfModel
from lancetable.index.vector.nearest_centroids import Centroids
from lancetable.index.vector.open_index import (
    AUXILIARY_FILE,
    INDEX_FILE,
    INDEX_KEY,
    IVF_KEY,
    METRIC_KEY,
    ROW_ID,
)
from lancetable.index.vector.quantizer import METADATA_KEY, Codes, Quantizer, metadata_text
from lancetable.index.vector.training import TrainedIndex, comparable, valid_vectors
from lancetable.index.vector.vector_arrays import vectors_of

if TYPE_CHECKING:
    from lancetable.format.row_address import U64Array
    from lancetable.index.index_files import SegmentWriter
    from lancetable.index.vector.build_settings import BuildSettings
    from lancetable.index.vector.partition_buffers import PartitionBuffers

_FLAT_KEY: Final = "lance:flat"
_FLAT_SCHEMA: Final = pa.schema([pa.field("__flat_marker", pa.uint64(), nullable=False)])
_WRITTEN_BYTES: Final = 8 << 20
_ENCODED_BYTES: Final = 2 << 20
# If there are more graphs than this for each thread, a thread builds a whole one; otherwise, all threads build each.
_PARALLEL_GRAPHS: Final = 4


class EncodedRows(NamedTuple):
    """Partitions (n,), rows (n,) and codes (n, width) of vectors."""

    partitions: npt.NDArray[np.uint32]
    rows: U64Array
    codes: Codes


class VectorEncoder:
    """Assignment of vectors to partitions, and their codes. Immutable and thread-safe."""

    def __init__(self, trained: TrainedIndex, metric: Metric) -> None:
        self._metric, self._quantizer = metric, trained.quantizer
        self._wide = comparable(trained.centroids)
        self._centroids = Centroids(self._wide, dot=metric is Metric.DOT)

    def encode(self, batch: pa.RecordBatch) -> EncodedRows:
        """Encode the vectors of a batch with the columns VALUE and ROW; null and invalid ones are left out."""
        positions, vectors = vectors_of(batch.column(VALUE))
        vectors, valid = valid_vectors(vectors, self._metric)
        rows = batch.column(ROW).to_numpy()[positions[valid]]
        wide = comparable(vectors)
        partitions, _ = self._centroids.nearest(wide)
        if self._quantizer.uses_residuals:
            # pylance computes residuals in the type of the vectors; other types are rounded when they are encoded.
            residuals = wide - self._wide[partitions]
            vectors = residuals.astype(np.float16) if vectors.dtype == np.float16 else residuals
        return EncodedRows(partitions, rows, self._quantizer.encode(vectors))

    def encode_all(self, batches: Iterable[pa.RecordBatch]) -> Iterator[EncodedRows]:
        """Encode batches on the thread pool, in order."""
        if not thread_pool.can_share():
            yield from map(self.encode, batches)
            return
        yield from thread_pool.in_order(self.encode, _blocks(batches), thread_pool.size)


def _blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Divide batches, so that copies of the vectors are small."""
    for batch in batches:
        step = max(1, batch.num_rows * _ENCODED_BYTES // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


def write_segment(
    writer: SegmentWriter, trained: TrainedIndex, buffers: PartitionBuffers, settings: BuildSettings
) -> None:
    """Write the files of a segment with the rows of all partitions."""
    _write_codes(writer, trained.quantizer, buffers, settings.metric)
    if settings.has_graph:
        _write_graphs(writer, trained, buffers, settings)
        return
    texts = [""] * len(buffers.lengths)
    model = IvfModel(np.zeros_like(buffers.lengths), np.zeros_like(buffers.lengths), trained.centroids, trained.loss)
    with writer.open_file(INDEX_FILE, _FLAT_SCHEMA) as file:
        file.metadata[IVF_KEY] = str(file.add_buffer(model.serialize()))
        file.metadata.update({INDEX_KEY: _index_text(settings), _FLAT_KEY: json.dumps(texts, separators=(",", ":"))})


def _index_text(settings: BuildSettings) -> str:
    entry = {"type": settings.index_type, "distance_type": settings.metric.value}
    return json.dumps(entry, separators=(",", ":"))


def _write_codes(writer: SegmentWriter, quantizer: Quantizer, buffers: PartitionBuffers, metric: Metric) -> None:
    schema = pa.schema([pa.field(ROW_ID, pa.uint64()), quantizer.code_field])
    with writer.open_file(AUXILIARY_FILE, schema) as file:
        file.metadata[IVF_KEY] = str(file.add_buffer(IvfModel.of_lengths(buffers.lengths).serialize()))
        content = quantizer.buffer()
        number = None if content is None else file.add_buffer(content)
        file.metadata.update({METRIC_KEY: metric.value, METADATA_KEY: metadata_text(quantizer, number)})
        for batch in _batches(schema, quantizer, buffers):
            file.write(batch)


def _batches(schema: pa.Schema, quantizer: Quantizer, buffers: PartitionBuffers) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all partitions; small partitions are joined to one batch."""
    parts: list[tuple[U64Array, Codes]] = []
    size = 0
    for number in np.flatnonzero(buffers.lengths).tolist():
        rows, codes = buffers.partition(number)
        parts.append((rows, quantizer.to_stored(codes)))
        size += rows.nbytes + codes.nbytes
        if size >= _WRITTEN_BYTES:
            yield _batch(schema, parts)
            parts, size = [], 0
    if parts:
        yield _batch(schema, parts)


def _batch(schema: pa.Schema, parts: list[tuple[U64Array, Codes]]) -> pa.RecordBatch:
    rows, codes = (np.concatenate(arrays) for arrays in zip(*parts))
    values = pa.FixedSizeListArray.from_arrays(pa.array(codes.reshape(-1)), type=schema.field(1).type)
    return pa.record_batch([pa.array(rows), values], schema=schema)


def _write_graphs(
    writer: SegmentWriter, trained: TrainedIndex, buffers: PartitionBuffers, settings: BuildSettings
) -> None:
    lengths = np.zeros_like(buffers.lengths)
    texts: list[str] = []
    with writer.open_file(INDEX_FILE, SCHEMA) as file:
        build = partial(_graph, trained.quantizer, buffers, settings)
        numbers = range(len(buffers.lengths))
        graphs: Iterable[PartitionGraph] = map(build, numbers)
        if thread_pool.can_share() and np.count_nonzero(buffers.lengths) >= _PARALLEL_GRAPHS * thread_pool.size():
            graphs = thread_pool.in_order(build, numbers, thread_pool.size)
        for number, graph in enumerate(graphs):
            lengths[number] = graph.rows.num_rows
            texts.append(graph.text)
            if graph.rows.num_rows:
                file.write(graph.rows)
        model = replace(IvfModel.of_lengths(lengths, trained.centroids), loss=trained.loss)
        file.metadata[IVF_KEY] = str(file.add_buffer(model.serialize()))
        file.metadata.update({INDEX_KEY: _index_text(settings), GRAPHS_KEY: json.dumps(texts, separators=(",", ":"))})


def _graph(quantizer: Quantizer, buffers: PartitionBuffers, settings: BuildSettings, number: int) -> PartitionGraph:
    vectors: Any = np.empty((0, quantizer.dim), np.float32)
    if buffers.lengths[number]:
        vectors = comparable(quantizer.decode(buffers.partition(number)[1]))
    is_dot = settings.metric is Metric.DOT
    return build_graph(vectors, settings.graph, seed=number if settings.seed is None else settings.seed, dot=is_dot)
