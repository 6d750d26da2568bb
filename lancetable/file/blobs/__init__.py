"""Blobs of the second form: descriptors, writers, storage."""
