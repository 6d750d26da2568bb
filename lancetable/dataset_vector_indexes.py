"""Method of `LanceDataset` that builds vector indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lancetable.dataset_indexes import COMMON_ARGUMENTS, DatasetIndexes, ProgressCallback, one_column, uuid_or_none
from lancetable.progress import index_report, tracked

if TYPE_CHECKING:
    from typing_extensions import Self

VectorIndexType: TypeAlias = Literal["IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_HNSW_FLAT", "IVF_HNSW_PQ", "IVF_HNSW_SQ"]


class DatasetVectorIndexes(DatasetIndexes):
    """Base of `LanceDataset` with `create_index`."""

    def create_index(
        self,
        column: str | list[str],
        index_type: VectorIndexType | str,
        name: str | None = None,
        metric: str = "L2",
        replace: bool = False,
        num_partitions: int | None = None,
        ivf_centroids: Any = None,
        pq_codebook: Any = None,
        num_sub_vectors: int | None = None,
        accelerator: Any = None,
        index_cache_size: int | None = None,
        shuffle_partition_batches: int | None = None,
        shuffle_partition_concurrency: int | None = None,
        ivf_centroids_file: str | None = None,
        precomputed_partition_dataset: str | None = None,
        storage_options: dict[str, str] | None = None,
        filter_nan: bool = True,
        train: bool = True,
        fragment_ids: list[int] | None = None,
        index_uuid: str | None = None,
        *,
        target_partition_size: int | None = None,
        streaming_sample_rate: int | None = None,
        streaming_coreset_rate: int | None = None,
        streaming_refine_passes: int | None = None,
        skip_transpose: bool = False,
        progress_callback: ProgressCallback | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> Self:
        """Build a vector index on a column, and move the dataset to the new version.

        The vectors are divided into partitions around centroids. A search compares the query with the vectors of some
        partitions only. Rows that are added later are searched exactly until `optimize.optimize_indices` adds them to
        the index. Null vectors and vectors with NaN or infinity are not part of the index.

        Parameters
        ----------
        column
            Path of a column of vectors (fixed-size lists of floats, or of uint8 for hamming) or of multivectors.
        index_type
            The kind of index:

            - "IVF_FLAT": the vectors themselves.
            - "IVF_SQ": vectors with 8 bits for each number.
            - "IVF_PQ": vectors divided into sub-vectors, with a code of 8 or 4 bits for each.
            - "IVF_HNSW_FLAT", "IVF_HNSW_SQ", "IVF_HNSW_PQ": the same, with a graph for each partition.
        name
            Name of the index; `{column}_idx` by default, with a number if that name belongs to another index.
        metric
            "L2", "cosine", "dot" or "hamming".
        replace
            Replace an index with the same name.
        num_partitions, target_partition_size
            Number of partitions, or number of rows of a partition, from which it is computed. By default, the target is
            4096 for IVF_FLAT, 8192 for IVF_PQ and IVF_SQ, and 2^20 with graphs.
        ivf_centroids, ivf_centroids_file
            Existing centroids (partitions, dim), or a NumPy file with them.
        pq_codebook
            Existing codebook (num_sub_vectors, 2^num_bits, dim / num_sub_vectors); requires centroids.
        num_sub_vectors
            Number of sub-vectors; required for PQ. It divides the dimension.
        train
            Index all rows. Otherwise the index is empty, and `optimize_indices` fills it.
        fragment_ids
            Build a segment for these fragments and do not commit it; `create_index_uncommitted` returns it.
        index_uuid
            Id of the new segment; random by default.
        progress_callback
            Function that is called with `IndexProgress` events.
        seed
            Seed of all random choices, so that a build can be repeated. Not in pylance.
        accelerator, precomputed_partition_dataset, skip_transpose
            Not supported.
        index_cache_size, shuffle_partition_batches, shuffle_partition_concurrency, storage_options, filter_nan, \
        streaming_sample_rate, streaming_coreset_rate, streaming_refine_passes
            Accepted for compatibility, without effect.
        **kwargs
            `num_bits` (8, or 4 for PQ), `max_iters` and `sample_rate` of the training, and for graphs `m`,
            `ef_construction` and `max_level`.

        Returns
        -------
        LanceDataset
            This dataset.

        Raises
        ------
        ColumnNotFoundError
            If the column does not exist.
        UnsupportedTypeError
            If the column does not contain vectors.
        UnsupportedFeatureError
            If the kind of index or an argument is not supported.
        IndexExistsError
            If an index with this name is on another column, or exists although `replace` is False.
        InvalidInputError
            If an argument is invalid.
        RetryableCommitConflictError
            If every attempt conflicted with a concurrent commit.
        CommitStateUnknownError
            If the outcome of the commit is unknown.

        Examples
        --------
        >>> vectors = lancetable.vector.vec_to_table([[float(n), 1.0] for n in range(100)])
        >>> points = lancetable.write_dataset(vectors, "points.lance")
        >>> points = points.create_index("vector", "IVF_FLAT", num_partitions=4)
        >>> points.to_table(nearest={"column": "vector", "q": [7.2, 1.0], "k": 2})["vector"].to_pylist()
        [[7.0, 1.0], [8.0, 1.0]]
        """
        arguments = {name: value for name, value in locals().items() if name not in COMMON_ARGUMENTS} | kwargs
        from lancetable.index.vector.vector_kind import KIND
        from lancetable.ops.index.create import create_index
        from lancetable.vector_index_arguments import vector_options

        options = vector_options(index_type, arguments)
        if fragment_ids is not None:
            self.create_index_uncommitted(
                column, index_type, name, replace=replace, train=train, fragment_ids=fragment_ids, **arguments
            )
            return self
        with tracked(index_report(progress_callback), "create_index") as tracker:
            self._table = create_index(
                self._table,
                one_column(column),
                KIND,
                name=name,
                replace=replace,
                train=train,
                uuid=uuid_or_none(index_uuid),
                options=options,
                tracker=tracker,
            )
        return self
