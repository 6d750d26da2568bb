"""Compaction, cleanup, migration, checks."""
