"""Kinds of vector indexes, for builds and maintenance. Searches do not use the methods for filters.

A segment without files has settings only: it was created without training, or for too few rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lancetable.errors import CorruptFileError, InvalidInputError, UnsupportedTypeError
from lancetable.format.protobuf_conversion import parse_message
from lancetable.index.distances import Metric
from lancetable.index.kind import Batches, IndexedValues, IndexKind, OpenIndex, RowFilter, Sources
from lancetable.index.vector.build_settings import TYPES, BuildSettings
from lancetable.index.vector.open_index import OpenVectorIndex
from lancetable.index.vector.partition_buffers import PartitionBuffers
from lancetable.index.vector.segment_writer import VectorEncoder, write_segment
from lancetable.index.vector.training import TrainedIndex, train, training_size
from lancetable.index.vector.vector_arrays import vector_type, vectors_of
from lancetable.index.vector_segments import type_of_details
from lancetable.proto import index_pb2

if TYPE_CHECKING:
    import pyarrow as pa
    from google.protobuf.message import Message

    from lancetable.format.schema import Field
    from lancetable.index.index_files import SegmentWriter
    from lancetable.index.queries import IndexQuery
    from lancetable.index.results import IndexResult
    from lancetable.index.row_mapping import AddressMapping
    from lancetable.index.segments import SegmentFiles


class VectorSegment(OpenIndex):
    """Open segment of a vector index with its settings. `content` is None for a segment without files."""

    def __init__(self, files: SegmentFiles) -> None:
        path = files.version.location.path
        details = parse_message(index_pb2.VectorIndexDetails, files.details, path)
        self.content = OpenVectorIndex(files) if files.metadata.files or not files.details else None
        if self.content is None:
            self.settings = _settings(details, path)
            return
        content = self.content
        if not files.details or type_of_details(details) != content.type:
            details = index_pb2.VectorIndexDetails()
        settings = replace(_settings(details, path), index_type=content.type, metric=content.metric)
        self.settings = settings.with_quantizer(content.quantizer)
        self.settings = replace(self.settings, centroids=content.centroids, num_partitions=content.num_partitions)

    def search(self, query: IndexQuery) -> IndexResult:
        """Raise AssertionError: no filter uses a vector index."""
        raise AssertionError("a vector index has no answer to a filter")

    def statistics(self) -> dict[str, Any]:
        """Return statistics of the segment. See OpenIndex."""
        return {} if self.content is None else self.content.statistics()

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The options of the build, with centroids and quantizer, so that new segments have the same partitions."""
        return self.settings.as_options()

    @property
    def training_parameters(self) -> Mapping[str, Any]:
        """The options without centroids and quantizer. See OpenIndex."""
        return self.settings.untrained().as_options()

    def can_merge(self, other: OpenIndex) -> bool:
        """Return whether both segments have the same partitions and codes, with or without graphs. See OpenIndex."""
        if not isinstance(other, VectorSegment) or self.content is None or other.content is None:
            return False
        one, two = self.content, other.content
        return (
            (one.quantizer.kind, one.metric) == (two.quantizer.kind, two.metric)
            and np.array_equal(one.centroids, two.centroids)
            and one.quantizer.has_codes_of(two.quantizer)
        )

    @property
    def is_mergeable(self) -> bool:
        """False for a segment without files. See OpenIndex."""
        return self.content is not None

    def prewarm(self) -> None:
        """Read all partitions into the cache. See OpenIndex."""
        if self.content is not None:
            self.content.prewarm()

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory. See OpenIndex."""
        return 1024 if self.content is None else self.content.memory_bytes


def _settings(details: index_pb2.VectorIndexDetails, path: str) -> BuildSettings:
    try:
        return BuildSettings.of_details(details)
    except InvalidInputError as error:
        raise CorruptFileError(f"invalid details of a vector index: {error}", path=path) from error


class VectorKind(IndexKind):
    """One type of vector index, such as "IVF_PQ"."""

    name = "VECTOR"
    plan_name: str
    type_url = "/lance.index.pb.VectorIndexDetails"
    max_version = 1
    needs_training = True

    def __init__(self, index_type: str) -> None:
        self.plan_name = index_type

    def for_options(self, options: Mapping[str, Any]) -> IndexKind:
        """Return the kind of the settings. See IndexKind."""
        return _KINDS[BuildSettings.of_options(options).index_type] if options else self

    def value_type(self, data_type: pa.DataType) -> pa.DataType | None:
        """Files of vector indexes do not contain the type of the column. See IndexKind."""
        return None

    def check_field(self, field: Field, path: str) -> None:
        """Raise UnsupportedTypeError unless the column contains vectors. See IndexKind."""
        if vector_type(field.data_type) is None:
            raise UnsupportedTypeError(
                f"Vector column {path} must be FixedSizeListArray 1-dimensional FixedShapeTensorArray, got"
                f" {field.data_type}; store lists of a fixed size of floats or uint8",
                feature=f"vector indexes of {field.logical_type} columns",
            )

    def answers(self, query: IndexQuery, details: bytes) -> bool:
        """Return False: filters do not use vector indexes. See IndexKind."""
        return False

    def open(self, files: SegmentFiles) -> VectorSegment:
        """Open a segment. See IndexKind."""
        return VectorSegment(files)

    def merge(
        self, writer: SegmentWriter, field: Field, sources: Sources, batches: Batches, options: Mapping[str, Any]
    ) -> Message:
        """Write one segment from segments with the same partitions, and vectors. See IndexKind.

        With `options`, these determine the graphs, which the sources need not have.
        """
        assert isinstance(batches, IndexedValues)
        opened = [(source, keep) for source, keep in sources if isinstance(source, VectorSegment)]
        settings = BuildSettings.of_options(options) if options or not opened else opened[-1][0].settings
        if opened and options:
            settings = opened[-1][0].settings.with_graphs_of(settings)
        trained = _train(field, settings, batches)
        if trained is None:
            return settings.untrained().to_details()
        with PartitionBuffers(len(trained.centroids)) as buffers:
            for source, keep in opened:
                _copy(source, keep, buffers)
            for encoded in VectorEncoder(trained, settings.metric).encode_all(batches):
                buffers.add(*encoded)
            buffers.finish()
            write_segment(writer, trained, buffers, settings)
        return settings.to_details()

    def remap(self, writer: SegmentWriter, source: OpenIndex, mapping: AddressMapping) -> bool:
        """Write a segment with the new addresses of its rows; graphs are built again. See IndexKind."""
        assert isinstance(source, VectorSegment)
        if source.content is None:
            return False
        content, settings = source.content, source.settings
        trained = TrainedIndex(content.centroids, content.ivf.loss, content.quantizer)
        with PartitionBuffers(content.num_partitions) as buffers:
            for number in range(content.num_partitions):
                part = content.read_partition(number)
                rows, exists = mapping.apply(part.row_ids)
                codes = content.quantizer.of_prepared(part.codes)[exists]
                buffers.add(np.full(len(codes), number, np.uint32), rows[exists], codes)
            buffers.finish()
            write_segment(writer, trained, buffers, settings)
        return True


def _copy(source: VectorSegment, keep: RowFilter, buffers: PartitionBuffers) -> None:
    content = source.content
    assert content is not None
    for number in range(content.num_partitions):
        part = content.read_partition(number)
        kept = keep(part.row_ids)
        codes = content.quantizer.of_prepared(part.codes)[kept]
        buffers.add(np.full(len(codes), number, np.uint32), part.row_ids[kept], codes)


def train_on(field: Field, options: Mapping[str, Any], values: IndexedValues) -> TrainedIndex | None:
    """Train an index on a sample of the values of a column. Returns None if there are too few vectors.

    Raises InvalidInputError if the options do not fit the column.
    """
    return _train(field, BuildSettings.of_options(options), values)


def _train(field: Field, settings: BuildSettings, batches: IndexedValues) -> TrainedIndex | None:
    vectors = vector_type(field.data_type)
    assert vectors is not None
    dtype, dim = np.dtype(vectors.value_type.to_pandas_dtype()), vectors.list_size
    if not settings.metric.supports(dtype):
        raise InvalidInputError(
            f"Unsupported training sample type {vectors.value_type} with metric {settings.metric.value}; hamming is for"
            " uint8, other metrics are for floats"
        )
    if field.is_list and settings.metric is not Metric.COSINE:
        raise InvalidInputError("multivector type supports only cosine distance in an index; choose metric='cosine'")
    settings.check_dim(dim)
    num_partitions = settings.partitions_for(batches.num_rows)
    size = training_size(settings, num_partitions)
    sample: Any = np.empty((0, dim), dtype)
    if size and batches.num_rows:
        sample = vectors_of(batches.sample(size, settings.seed))[1]
    return train(sample, settings, num_partitions, dim, dtype)


_KINDS: Final = {index_type: VectorKind(index_type) for index_type in TYPES}
KIND: Final = VectorKind("IVF_FLAT")
