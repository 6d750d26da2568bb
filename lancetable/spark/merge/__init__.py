"""Merges of frames into a table."""

from lancetable.spark.merge.builder import MergeResult, SparkMergeBuilder
from lancetable.spark.merge.null_keys import NullKeys

__all__ = ["MergeResult", "NullKeys", "SparkMergeBuilder"]
