"""Maintenance of tables: compaction, cleanup, migration, checks and repair."""
