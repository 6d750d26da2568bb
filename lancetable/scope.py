"""Features of pylance that lancetable does not support, and the stubs for them.

A name of pylance's API that is missing here exists as a stub that raises `UnsupportedFeatureError` (a
`NotImplementedError`) with the name of the feature and whether it is planned or out of scope. Each group below is
(name of the feature, planned?, the names that belong to it).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from lancetable.errors import UnsupportedFeatureError

__all__ = [
    "DATASET",
    "FRAGMENT",
    "MERGE_INSERT",
    "MODULE",
    "SCANNER_BUILDER",
    "STATS",
    "fill_gaps",
    "missing_names",
    "raise_unsupported",
    "reject",
]

Groups = list[tuple[str, bool, str]]
PLANNED, OUTSIDE = True, False

DATASET: Groups = [
    (
        "secondary indexes",
        OUTSIDE,
        (
            "create_index create_index_uncommitted create_scalar_index commit_existing_index_segments "
            "merge_existing_index_segments merge_index_metadata drop_index list_indices describe_indices "
            "index_statistics prewarm_index get_ivf_model centroids remap_row_addrs"
        ),
    ),
    ("the MemWAL", OUTSIDE, "initialize_mem_wal mem_wal_writer mem_wal_index_details"),
    ("refreshed storage credentials", OUTSIDE, "storage_options_accessor"),
]
FRAGMENT: Groups = []
MERGE_INSERT: Groups = [
    ("the MemWAL", OUTSIDE, "mark_sstables_as_compacted"),
]
STATS: Groups = [("secondary indexes", OUTSIDE, "index_stats")]
SCANNER_BUILDER: Groups = [
    ("vector search", OUTSIDE, "nearest minhash_search"),
    ("full text search", OUTSIDE, "full_text_search"),
    ("aggregates in a scan", OUTSIDE, "substrait_aggregate"),
]
MODULE: Groups = [
    ("secondary indexes", OUTSIDE, "IndexProgress"),
    ("full text search", OUTSIDE, "FtsToken tokenize"),
    (
        "the MemWAL",
        OUTSIDE,
        (
            "LsmPointLookupPlanner LsmScanner LsmVectorSearchPlanner CompactedSsTable ShardSnapshot ShardWriter "
            "ShardingField ShardingSpec evaluate_sharding_spec ExecutionPlan"
        ),
    ),
    ("catalog providers", OUTSIDE, "FFILanceTableProvider"),
    ("CPU feature reports", OUTSIDE, "simd_info"),
]

PROPERTIES = frozenset({"storage_options_accessor"})

T = TypeVar("T")


def raise_unsupported(feature: str, *, planned: bool, name: str = "") -> NoReturn:
    """Raise the error for an unsupported feature; `name` is the API name that the caller used.

    Raises
    ------
    UnsupportedFeatureError
        Always.
    """
    verdict = "planned, but not built yet" if planned else "outside the scope of lancetable"
    subject = f"{name}: {feature}" if name else feature
    raise UnsupportedFeatureError(f"{subject} is not supported ({verdict})", feature=feature)


def reject(feature: str, *, planned: bool, **arguments: object) -> None:
    """Raise UnsupportedFeatureError for the first of `arguments` that was given, i.e. is not None, False or empty."""
    for name, value in arguments.items():
        empty = isinstance(value, (list, tuple, dict)) and not value
        if value is not None and value is not False and not empty:
            raise_unsupported(feature, planned=planned, name=f"argument {name}")


def missing_names(groups: Groups) -> dict[str, tuple[str, bool]]:
    """Return a mapping of each name to (feature, planned?)."""
    return {name: (feature, planned) for feature, planned, names in groups for name in names.split()}


def stub(name: str, feature: str, planned: bool) -> Callable[..., Any]:
    """Return a function that raises UnsupportedFeatureError for any arguments."""

    def missing(*args: object, **kwargs: object) -> Any:
        raise_unsupported(feature, planned=planned, name=name)

    missing.__name__ = missing.__qualname__ = name
    missing.__doc__ = f"Not supported: {feature}. Raises UnsupportedFeatureError."
    return missing


def fill_gaps(groups: Groups) -> Callable[[type[T]], type[T]]:
    """Return a class decorator that adds a raising stub for each name of `groups`."""

    def fill(cls: type[T]) -> type[T]:
        for name, (feature, planned) in missing_names(groups).items():
            raising = stub(f"{cls.__name__}.{name}", feature, planned)
            setattr(cls, name, property(raising) if name in PROPERTIES else raising)
        return cls

    return fill
