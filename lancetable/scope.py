"""What pylance has and lancetable has not: one table, from which stubs are made that say so.

A name of pylance's API that is missing here exists all the same and raises `UnsupportedFeatureError` (a
`NotImplementedError`) with the name of the feature and whether it is planned or outside this project. Each group below
is (what the feature is called, planned?, the names that belong to it).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

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
    "reject",
    "unsupported",
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


def unsupported(feature: str, *, planned: bool, name: str = "") -> UnsupportedFeatureError:
    """The error for a feature that is not built; `name` is what the caller used."""
    verdict = "planned, but not built yet" if planned else "outside the scope of lancetable"
    subject = f"{name}: {feature}" if name else feature
    return UnsupportedFeatureError(f"{subject} is not supported ({verdict})", feature=feature)


def reject(feature: str, *, planned: bool, **arguments: object) -> None:
    """Raise for the first of `arguments` that was given, that is, is neither None nor False nor empty."""
    for name, value in arguments.items():
        empty = isinstance(value, (list, tuple, dict)) and not value
        if value is not None and value is not False and not empty:
            raise unsupported(feature, planned=planned, name=f"argument {name}")


def missing_names(groups: Groups) -> dict[str, tuple[str, bool]]:
    """Name -> (feature, planned?)."""
    return {name: (feature, planned) for feature, planned, names in groups for name in names.split()}


def stub(name: str, feature: str, planned: bool) -> Callable[..., Any]:
    """A function that raises what `unsupported` builds, whatever it is called with."""

    def missing(*args: object, **kwargs: object) -> Any:
        raise unsupported(feature, planned=planned, name=name)

    missing.__name__ = missing.__qualname__ = name
    missing.__doc__ = f"Not supported: {feature}. Raises UnsupportedFeatureError."
    return missing


def fill_gaps(groups: Groups) -> Callable[[type[T]], type[T]]:
    """Class decorator: give the class a raising stub for each name of `groups`."""

    def fill(cls: type[T]) -> type[T]:
        for name, (feature, planned) in missing_names(groups).items():
            raising = stub(f"{cls.__name__}.{name}", feature, planned)
            setattr(cls, name, property(raising) if name in PROPERTIES else raising)
        return cls

    return fill
