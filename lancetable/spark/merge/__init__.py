"""Merges of frames into a table."""

from lancetable.spark.merge.builder import MergeResult, NullKeys, SparkMergeBuilder

__all__ = ["MergeResult", "NullKeys", "SparkMergeBuilder"]
