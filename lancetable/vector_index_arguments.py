"""Arguments of pylance for vector indexes, converted to the options of a build."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import InvalidInputError, UnsupportedFeatureError
from lancetable.index.distances import Metric
from lancetable.index.vector.build_settings import TYPES, BuildSettings

# Arguments of pylance for the memory and the concurrency of its builds.
_WITHOUT_EFFECT: Final = frozenset(
    [
        "filter_nan",
        "index_cache_size",
        "prefetch_distance",
        "shuffle_partition_batches",
        "shuffle_partition_concurrency",
        "storage_options",
        "streaming_coreset_rate",
        "streaming_refine_passes",
        "streaming_sample_rate",
        "kmeans_redos",
    ]
)
_RENAMED: Final = {"max_iters": "max_iterations", "pq_codebook": "codebook", "ivf_centroids": "centroids"}
_PASSED: Final = (
    "num_partitions",
    "target_partition_size",
    "num_sub_vectors",
    "num_bits",
    "m",
    "ef_construction",
    "max_level",
    "sample_rate",
    "max_iters",
    "seed",
)


def is_vector_type(index_type: object) -> bool:
    """Return whether an argument names a kind of vector index."""
    return isinstance(index_type, str) and index_type.upper().startswith("IVF_")


def vector_options(index_type: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a build from arguments of `create_index`; those that are None are ignored.

    Raises
    ------
    UnsupportedFeatureError
        If the type, an accelerator or another feature is not supported.
    InvalidInputError
        If an argument is unknown or invalid.
    TypeError
        If an argument has a wrong type.
    """
    name = index_type.upper()
    if name not in TYPES:
        raise UnsupportedFeatureError(
            f"Only {list(TYPES)} index types supported. Got {index_type}", feature=f"{name} indexes"
        )
    given = {key: value for key, value in arguments.items() if value is not None and key not in _WITHOUT_EFFECT}
    if arguments.get("index_cache_size") is not None:
        warnings.warn(
            "The 'index_cache_size' parameter of create_index is ignored; pass index_cache_size_bytes to the dataset.",
            DeprecationWarning,
            stacklevel=4,
        )
    _reject(given)
    metric = given.pop("metric", "L2")
    options: dict[str, Any] = {"index_type": name, "metric": Metric.named(metric)}
    if "PQ" in name and "num_sub_vectors" not in given:
        raise InvalidInputError(f"num_partitions and num_sub_vectors are required for {name}")
    if "PQ" not in name:
        given.pop("num_sub_vectors", None)
    if "ivf_centroids_file" in given:
        if "ivf_centroids" in given:
            raise InvalidInputError("ivf_centroids and ivf_centroids_file cannot be provided at the same time")
        given["ivf_centroids"] = np.load(given.pop("ivf_centroids_file"), allow_pickle=False)
    if "pq_codebook" in given and "ivf_centroids" not in given:
        raise InvalidInputError("ivf_centroids must be specified when pq_codebook is provided")
    partitions = given.get("num_partitions")
    if isinstance(partitions, float):
        warnings.warn("num_partitions is float, converting to int", stacklevel=4)
        given["num_partitions"] = int(partitions)
    elif partitions is not None and not isinstance(partitions, (int, np.integer)):
        raise TypeError(f"num_partitions must be int, got {type(partitions)}")
    if "ivf_centroids" in given:
        given["ivf_centroids"] = _centroids(given["ivf_centroids"], given.get("num_partitions"))
        given["num_partitions"] = len(given["ivf_centroids"])
    if "pq_codebook" in given:
        given["pq_codebook"] = _codebook(given["pq_codebook"], given["num_sub_vectors"], given.get("num_bits", 8))
    if isinstance(given.get("num_partitions"), int) and given["num_partitions"] < 1:
        raise InvalidInputError(f"num_partitions must be set and positive, got {given['num_partitions']}")
    options |= {_RENAMED.get(key, key): value for key, value in given.items()}
    BuildSettings.of_options(options)
    return options


def _reject(given: dict[str, Any]) -> None:
    """Remove arguments that have their default value.

    Raises
    ------
    UnsupportedFeatureError
        If an argument is not supported.
    InvalidInputError
        If an argument is unknown.
    """
    if given.pop("accelerator", None) is not None:
        raise UnsupportedFeatureError("accelerator is not supported; omit it to use the CPU", feature="accelerator")
    if given.pop("precomputed_partition_dataset", None) is not None:
        raise UnsupportedFeatureError(
            "precomputed_partition_dataset is not supported; pass ivf_centroids", feature="precomputed partitions"
        )
    if given.pop("rabitq_model", None) is not None:
        raise UnsupportedFeatureError("IVF_RQ indexes cannot be built", feature="IVF_RQ indexes")
    version = given.pop("index_file_version", "V3")
    if str(version.value if isinstance(version, Enum) else version).upper() != "V3":
        raise UnsupportedFeatureError(
            "index_file_version must be 'V3'; older files of vector indexes are not written", feature="legacy indexes"
        )
    if given.pop("skip_transpose", False):
        raise UnsupportedFeatureError("skip_transpose is not supported; omit it", feature="skip_transpose")
    known = {"metric", "ivf_centroids", "ivf_centroids_file", "pq_codebook", *_PASSED}
    unknown = sorted(given.keys() - known)
    if unknown:
        raise InvalidInputError(f"vector indexes have no option {unknown[0]!r}; their options are: {sorted(known)}")


def _centroids(values: Any, num_partitions: int | None) -> npt.NDArray[Any]:
    centroids = _matrix(values)
    if centroids.ndim != 2:
        raise InvalidInputError(f"Ivf centroids must be 2D array: (clusters, dim), got {centroids.shape}")
    if not len(centroids):
        raise InvalidInputError(f"Ivf centroids must have at least one cluster, got {centroids.shape}")
    if num_partitions is not None and len(centroids) != num_partitions:
        raise InvalidInputError(f"Ivf centroids has {len(centroids)} clusters, but num_partitions={num_partitions}")
    if centroids.dtype.kind not in "fu":
        raise TypeError(f"IVF centroids must be floating number, got {centroids.dtype}")
    return centroids


def _codebook(values: Any, num_sub_vectors: int, num_bits: int) -> npt.NDArray[Any]:
    codebook, num_codes = _matrix(values), 1 << num_bits
    # One row for each code, or the tensor of the files.
    if codebook.ndim == 2 and len(codebook) in (num_sub_vectors * num_codes, num_codes):
        codebook = codebook.reshape(num_sub_vectors, num_codes, -1)
    if codebook.ndim != 3 or codebook.shape[:2] != (num_sub_vectors, num_codes):
        raise InvalidInputError(
            f"PQ codebook must be 3D array: (sub_vectors, {num_codes}, dim) for num_bits={num_bits}, got"
            f" {codebook.shape}"
        )
    if codebook.dtype.kind != "f":
        raise TypeError(f"PQ codebook must be floating number, got {codebook.dtype}")
    return codebook


def _matrix(values: Any) -> npt.NDArray[Any]:
    """Return the numbers of an array of NumPy, or of an Arrow array of vectors.

    Raises
    ------
    TypeError
        If an Arrow array does not contain vectors.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.FixedShapeTensorArray):
        tensor: npt.NDArray[Any] = values.to_numpy_ndarray()
        return tensor
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if isinstance(values, pa.Array):
        if not pa.types.is_fixed_size_list(values.type) or values.null_count:
            raise TypeError(f"expected an array of fixed-size lists without nulls, got {values.type}")
        numbers: npt.NDArray[Any] = values.flatten().to_numpy(zero_copy_only=False)
        return numbers.reshape(len(values), values.type.list_size)
    return np.asarray(values)
