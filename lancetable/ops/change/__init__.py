"""Deletes, updates and merges of rows."""
