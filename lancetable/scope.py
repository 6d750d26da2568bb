"""Features of pylance that lancetable does not support, and the stubs for them.

A name of pylance's API that is missing here exists as a stub that raises `UnsupportedFeatureError` (a
`NotImplementedError`) with the name of the feature. The tables below map each feature to the names that belong to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from lancetable.errors import UnsupportedFeatureError

_T = TypeVar("_T")
_Groups = Mapping[str, str]

DATASET: _Groups = {
    "the MemWAL": "initialize_mem_wal mem_wal_writer mem_wal_index_details",
    "refreshed storage credentials": "storage_options_accessor",
    "a view with another schema": "replace_schema",
    "pyarrow scan options": "_scanner_options",
}
MERGE_INSERT: _Groups = {"the MemWAL": "mark_sstables_as_compacted"}
SCANNER: _Groups = {
    "a scanner of a dataset; use LanceDataset.scanner": "from_dataset",
    "a scanner of a fragment; use LanceFragment.scanner": "from_fragment",
    "scanning plain batches": "from_batches",
    "a take by a scanner; use LanceDataset.take": "take",
}
SCANNER_BUILDER: _Groups = {
    "MinHash search": "minhash_search",
    "full text search": "full_text_search",
    "aggregates in a scan": "substrait_aggregate",
}
MODULE: _Groups = {
    "full text search": "FtsToken tokenize",
    "the MemWAL": (
        "LsmPointLookupPlanner LsmScanner LsmVectorSearchPlanner CompactedSsTable ShardSnapshot ShardWriter "
        "ShardingField ShardingSpec evaluate_sharding_spec ExecutionPlan"
    ),
    "catalog providers": "FFILanceTableProvider",
    "CPU feature reports": "simd_info",
}
MODULES: _Groups = {
    "data loaders of TensorFlow; use LanceDataset.to_batches": "tf",
}
TORCH: _Groups = {
    "k-means of tensors; use lancetable.util.KMeans": "kmeans",
    "distances of tensors": "distance",
    "asynchronous data sets; use the workers of a DataLoader": "async_dataset",
    "helpers of benchmarks": "bench_utils",
}
TORCH_DATA: _Groups = {
    "data sets of tensors; use torch.utils.data.TensorDataset": "TensorDataset concat_batches",
}
VECTOR: _Groups = {
    "vector indexes trained on accelerators; use LanceDataset.create_index": (
        "compute_partitions compute_pq_codes one_pass_assign_ivf_pq_on_accelerator "
        "one_pass_train_ivf_pq_on_accelerator train_ivf_centroids_on_accelerator train_pq_codebook_on_accelerator"
    ),
    "searches of duplicate vectors": (
        "find_duplicate_pairs find_duplicate_pairs_in_partition get_ivf_partition_info "
        "hamming_clustering_for_ivf_partition hamming_clustering_for_range hamming_clustering_for_sample"
    ),
}
UTIL: _Groups = {"graphs outside of an index; use create_index with IVF_HNSW_FLAT": "HNSW"}
_PROPERTIES = frozenset({"storage_options_accessor"})


def raise_unsupported(feature: str, *, name: str = "", planned: bool = False) -> NoReturn:
    """Raise the error for an unsupported feature.

    `name` is the API name that the caller used. A remedy may follow the feature after a semicolon. A feature that is
    not `planned` is out of scope.

    Raises
    ------
    UnsupportedFeatureError
        Always.
    """
    raise UnsupportedFeatureError(_message(feature, name, planned=planned), feature=feature.partition(";")[0])


def missing_module(name: str, groups: _Groups = MODULES) -> ImportError:
    """Return the error for the import of a module of pylance that is out of scope, given by its full name."""
    return ImportError(_message(missing_names(groups)[name.rpartition(".")[2]], name), name=name)


def _message(feature: str, name: str, *, planned: bool = False) -> str:
    verdict = "planned, not implemented yet" if planned else "out of scope"
    feature, semicolon, remedy = feature.partition(";")
    subject = f"{name}: " if name else ""
    return f"{subject}lancetable does not support {feature} ({verdict}){semicolon}{remedy}"


def reject(feature: str, **arguments: object) -> None:
    """Raise UnsupportedFeatureError for the first of `arguments` that was given, i.e. is not None, False or empty."""
    for name, value in arguments.items():
        empty = isinstance(value, (list, tuple, dict)) and not value
        if value is not None and value is not False and not empty:
            raise_unsupported(feature, name=f"argument {name}")


def missing_names(groups: _Groups) -> dict[str, str]:
    """Return a mapping of each name to its feature."""
    return {name: feature for feature, names in groups.items() for name in names.split()}


def stub(name: str, feature: str) -> Callable[..., Any]:
    """Return a function that raises UnsupportedFeatureError for any arguments."""

    def missing(*args: object, **kwargs: object) -> Any:
        raise_unsupported(feature, name=name)

    missing.__name__ = missing.__qualname__ = name
    missing.__doc__ = f"Not supported: {feature}. Raises UnsupportedFeatureError."
    return missing


def stubs_of_module(module: str, groups: _Groups) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module: it returns a raising stub for each name of `groups`.

    It raises AttributeError for other names.
    """
    missing = missing_names(groups)

    def find(name: str) -> Any:
        if name in missing:
            return stub(f"{module}.{name}", missing[name])
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find


def fill_gaps(groups: _Groups) -> Callable[[type[_T]], type[_T]]:
    """Return a class decorator that adds a raising stub for each name of `groups`."""

    def fill(cls: type[_T]) -> type[_T]:
        for name, feature in missing_names(groups).items():
            raising = stub(f"{cls.__name__}.{name}", feature)
            setattr(cls, name, property(raising) if name in _PROPERTIES else raising)
        return cls

    return fill
