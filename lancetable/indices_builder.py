"""`IndicesBuilder`, which builds IVF_PQ indexes in steps."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lancetable import scope
from lancetable.dataset_indexes import one_column
from lancetable.errors import InvalidInputError
from lancetable.index_metadata import Index
from lancetable.vector_models import IvfModel, PqModel

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from lancetable.dataset import LanceDataset
    from lancetable.fragment import LanceFragment
    from lancetable.ops.index.segment_builder import IndexTarget

_METRICS = ("l2", "cosine", "euclidean", "dot", "hamming")


class IndicesBuilder:
    """Builder of the IVF_PQ index of a column in steps, for builds whose parts are stored or distributed.

    For most tables, `LanceDataset.create_index` is simpler.

    Parameters
    ----------
    dataset
        The table.
    column
        Path of a column of vectors or multivectors.

    Raises
    ------
    ColumnNotFoundError
        If the column does not exist. It is a KeyError.
    UnsupportedTypeError
        If the column does not contain vectors. It is a TypeError.

    Examples
    --------
    >>> from lancetable.indices import IndicesBuilder
    >>> texts = lancetable.dataset("texts.lance")
    >>> builder = IndicesBuilder(texts, "embedding")
    >>> ivf = builder.train_ivf(4, sample_rate=64)
    >>> pq = builder.train_pq(ivf, 8, sample_rate=2)
    >>> for number, fragment in enumerate(texts.get_fragments()):  # in different processes
    ...     builder.transform_vectors(ivf, pq, f"codes/{number}", fragments=[fragment])
    >>> files = builder.shuffle_transformed_vectors(["0", "1"], "codes", ivf)
    >>> builder.load_shuffled_vectors(files, "codes", ivf, pq)
    >>> texts.stats.index_stats("embedding_idx")["num_indexed_rows"]
    600
    """

    def __init__(self, dataset: LanceDataset, column: str | Sequence[str]) -> None:
        from lancetable.index.vector.vector_arrays import vector_type
        from lancetable.index.vector.vector_kind import KIND
        from lancetable.ops.index.targets import find_column

        version = dataset.table_version
        field = find_column(version.schema, one_column(column))
        path = version.schema.path_of(field.id)
        KIND.check_field(field, path)
        found = vector_type(field.data_type)
        assert found is not None
        self.dataset, self.column, self.dimension = dataset, [path], int(found.list_size)

    # --- training

    def train_ivf(
        self,
        num_partitions: int | None = None,
        *,
        distance_type: str = "l2",
        accelerator: Any = None,
        sample_rate: int = 256,
        max_iters: int = 50,
        fragment_ids: list[int] | None = None,
    ) -> IvfModel:
        """Train the centroids of the partitions on a sample.

        Parameters
        ----------
        num_partitions
            Number of partitions; the square root of the number of rows by default.
        distance_type
            "l2", "cosine", "dot", or "hamming" for uint8.
        accelerator
            Not supported.
        sample_rate
            Number of rows of the sample for each partition.
        max_iters
            Maximum number of iterations.
        fragment_ids
            The fragments of the sample; all by default.

        Raises
        ------
        InvalidInputError
            If there are fewer rows than the sample needs, or if an argument is invalid.
        TypeError
            If `num_partitions` is not a number.
        """
        scope.reject("accelerators; omit it to use the CPU", accelerator=accelerator)
        num_rows = self._count_rows(fragment_ids)
        count = round(math.sqrt(num_rows)) if num_partitions is None else num_partitions
        if isinstance(count, float):
            warnings.warn("num_partitions is float, converting to int", stacklevel=2)
            count = int(count)
        if not isinstance(count, int):
            raise TypeError(f"num_partitions must be int, got {type(count)}")
        _check_sample("IVF centroids", count, sample_rate, num_rows)
        metric = str(distance_type).lower()
        if metric not in _METRICS:
            raise InvalidInputError(f"Distance type {distance_type} not supported; choose one of {list(_METRICS)}")
        options = {"metric": metric, "num_partitions": count, "sample_rate": sample_rate, "max_iters": max_iters}
        return IvfModel(_as_array(self._train("IVF_FLAT", options, fragment_ids).centroids), metric)

    def train_pq(
        self,
        ivf_model: IvfModel,
        num_subvectors: int | None = None,
        *,
        sample_rate: int = 256,
        max_iters: int = 50,
        num_bits: int = 8,
        fragment_ids: list[int] | None = None,
    ) -> PqModel:
        """Train a codebook on a sample.

        Parameters
        ----------
        ivf_model
            The partitions; for L2 and cosine, differences to their centroids are encoded.
        num_subvectors
            Number of sub-vectors, a divisor of the dimension. By default, they have 16 numbers, or 8.
        sample_rate
            Number of rows of the sample for each of the 2^num_bits codes.
        max_iters
            Maximum number of iterations.
        num_bits
            Bits of the code of a sub-vector, 8 or 4.
        fragment_ids
            The fragments of the sample; all by default.

        Raises
        ------
        InvalidInputError
            If there are fewer rows than the sample needs, or if an argument is invalid.
        """
        count = self._num_subvectors(num_subvectors)
        _check_sample("a PQ codebook", 1 << num_bits, sample_rate, self._count_rows(fragment_ids))
        options = {
            "metric": ivf_model.distance_type,
            "ivf_centroids": ivf_model.centroids,
            "num_sub_vectors": count,
            "num_bits": num_bits,
            "sample_rate": sample_rate,
            "max_iters": max_iters,
        }
        codebook = self._train("IVF_PQ", options, fragment_ids).quantizer.codebook
        return PqModel(count, _as_array(codebook.reshape(1 << num_bits, self.dimension)), num_bits=num_bits)

    def prepare_global_ivf_pq(
        self,
        num_partitions: int | None,
        num_subvectors: int | None,
        *,
        distance_type: str = "l2",
        accelerator: Any = None,
        sample_rate: int = 256,
        max_iters: int = 50,
        num_bits: int = 8,
        fragment_ids: list[int] | None = None,
    ) -> dict[str, pa.FixedSizeListArray]:
        """Train centroids and codebook, and return them as `ivf_centroids` and `pq_codebook` of `create_index`.

        Parameters and errors are those of `train_ivf` and `train_pq`.
        """
        training: dict[str, Any] = {"sample_rate": sample_rate, "max_iters": max_iters, "fragment_ids": fragment_ids}
        ivf_model = self.train_ivf(num_partitions, distance_type=distance_type, accelerator=accelerator, **training)
        pq_model = self.train_pq(ivf_model, num_subvectors, num_bits=num_bits, **training)
        return {"ivf_centroids": ivf_model.centroids, "pq_codebook": pq_model.codebook}

    # --- codes

    def assign_ivf_partitions(self, ivf_model: IvfModel, accelerator: Any, *, output_uri: str | None = None) -> str:
        """Raise UnsupportedFeatureError: `transform_vectors` assigns partitions, and accelerators are not supported."""
        scope.raise_unsupported(
            "partitions that an accelerator assigns; use transform_vectors", name="assign_ivf_partitions"
        )

    def transform_vectors(
        self,
        ivf: IvfModel,
        pq: PqModel,
        dest_uri: str,
        fragments: list[LanceFragment] | None = None,
        partition_ds_uri: str | None = None,
    ) -> None:
        """Write row id, partition and code of each vector of some fragments to a file.

        Null vectors and vectors with NaN or infinity are left out.

        Parameters
        ----------
        ivf, pq
            Partitions and codebook.
        dest_uri
            Path or URI of the file, which is replaced. The storage options are those of the dataset.
        fragments
            The fragments; all by default.
        partition_ds_uri
            Not supported.

        Raises
        ------
        InvalidInputError
            If `fragments` is empty, or if a model does not fit the column.
        """
        from lancetable.ops.index.build_in_steps import write_codes

        scope.reject("precomputed partitions; omit it", partition_ds_uri=partition_ds_uri)
        if fragments is not None and not fragments:
            raise InvalidInputError("fragments must be a non-empty list or None")
        ids = [fragment.fragment_id for fragment in fragments or self.dataset.get_fragments()]
        write_codes(self.dataset.table_version, self._target(ivf, pq, None), ids, dest_uri)

    def shuffle_transformed_vectors(
        self,
        unsorted_filenames: list[str],
        dir_path: str,
        ivf: IvfModel,
        shuffle_output_root_filename: str | None = "sorted",
    ) -> list[str]:
        """Sort the rows of files of `transform_vectors` by partition, in bounded memory, and write them to a file.

        Parameters
        ----------
        unsorted_filenames
            Names of the files in `dir_path`.
        dir_path
            Directory of the files and of the new file.
        ivf
            The partitions.
        shuffle_output_root_filename
            Name of the new file, without the suffix "_0.lance".

        Returns
        -------
        list of str
            Name of the new file in `dir_path`.

        Raises
        ------
        InvalidInputError
            If no file is given, or if two files cover the same fragment.
        CorruptFileError
            If a file was not written by `transform_vectors` or does not fit the partitions.
        """
        from lancetable.ops.index.build_in_steps import sort_codes

        name = f"{shuffle_output_root_filename or 'sorted'}_0.lance"
        paths = _paths(unsorted_filenames, dir_path)
        sort_codes(self.dataset.table_version, paths, ivf.num_partitions, *_paths([name], dir_path))
        return [name]

    def load_shuffled_vectors(
        self, filenames: list[str], dir_path: str, ivf: IvfModel, pq: PqModel, index_name: str | None = None
    ) -> None:
        """Write an index from files of `shuffle_transformed_vectors`, and commit it.

        The index covers the fragments of the files, and replaces existing segments of these fragments. The dataset of
        the builder moves to the new version.

        Parameters
        ----------
        filenames
            Names of the files in `dir_path`.
        dir_path
            Directory of the files.
        ivf, pq
            The models with which the files were made.
        index_name
            Name of the index; `{column}_idx` by default.

        Raises
        ------
        InvalidInputError
            If no file is given, if two files cover the same fragment, or if a model does not fit.
        CorruptFileError
            If a file was not written by these methods.
        RetryableCommitConflictError
            If every attempt conflicted with a concurrent commit.
        """
        from lancetable.ops.index.build_in_steps import load_codes

        version, name = self.dataset.table_version, index_name or f"{self.column[0]}_idx"
        entry = load_codes(version, self._target(ivf, pq, name), _paths(filenames, dir_path))
        self.dataset.commit_existing_index_segments(name, self.column[0], [Index.from_format(entry)])

    # --- arguments

    def _train(self, index_type: str, arguments: dict[str, Any], fragment_ids: list[int] | None) -> Any:
        from lancetable.ops.index.build_in_steps import trained_index

        version = self.dataset.table_version
        if fragment_ids is None:
            fragment_ids = [fragment.id for fragment in version.manifest.fragments]
        return trained_index(version, self._target_of(index_type, arguments, None), fragment_ids)

    def _target(self, ivf: IvfModel, pq: PqModel, name: str | None) -> IndexTarget:
        arguments = {
            "metric": ivf.distance_type,
            "ivf_centroids": ivf.centroids,
            "pq_codebook": pq.codebook,
            "num_sub_vectors": pq.num_subvectors,
            "num_bits": pq.num_bits,
        }
        return self._target_of("IVF_PQ", arguments, name)

    def _target_of(self, index_type: str, arguments: dict[str, Any], name: str | None) -> IndexTarget:
        from lancetable.index.vector.vector_kind import KIND
        from lancetable.ops.index.targets import target_of
        from lancetable.vector_index_arguments import vector_options

        options = vector_options(index_type, arguments)
        return target_of(self.dataset.table_version, self.column[0], KIND, name, options, replace=True)

    def _count_rows(self, fragment_ids: list[int] | None) -> int:
        if fragment_ids is None:
            return self.dataset.count_rows()
        fragments = {number: self.dataset.get_fragment(number) for number in fragment_ids}
        missing = [number for number, fragment in fragments.items() if fragment is None]
        if missing:
            raise InvalidInputError(f"Fragment id does not exist: {missing[0]}")
        return sum(fragment.count_rows() for fragment in fragments.values() if fragment is not None)

    def _num_subvectors(self, count: int | None) -> int:
        dim = self.dimension
        if count is None:
            width = next((width for width in (16, 8) if dim % width == 0), None)
            if width is None:
                raise InvalidInputError(f"dimension {dim} is not divisible by 16 or 8; specify num_subvectors")
            return dim // width
        if not isinstance(count, int) or not 1 <= count <= dim:
            raise InvalidInputError(f"num_subvectors must be an int from 1 to the dimension {dim}, got {count!r}")
        if dim % count:
            raise InvalidInputError(
                f"dimension ({dim}) must be divisible by num_subvectors ({count}) without remainder"
            )
        return count


def _check_sample(what: str, count: int, sample_rate: int, num_rows: int) -> None:
    """Check that a sample of `sample_rate` rows for each of `count` centroids is possible.

    Raises
    ------
    InvalidInputError
        If there are fewer rows, or if the rate is invalid.
    """
    if not isinstance(sample_rate, int) or sample_rate < 2:
        raise InvalidInputError(f"The sample_rate must be an int greater than 1, got {sample_rate}")
    if count * sample_rate > num_rows:
        raise InvalidInputError(
            f"There are not enough rows in the dataset to create {what} with a sample rate of {sample_rate}:"
            f" {count * sample_rate} rows needed and there are {num_rows}"
        )


def _paths(filenames: Any, dir_path: str) -> list[str]:
    """Return the paths of files in a directory.

    Raises
    ------
    InvalidInputError
        If `filenames` is not a list of strings.
    """
    if not isinstance(filenames, list) or not all(isinstance(name, str) for name in filenames):
        raise InvalidInputError("filenames must be a list of strings")
    return [f"{dir_path.rstrip('/')}/{name}" for name in filenames]


def _as_array(vectors: npt.NDArray[np.generic]) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
