"""Removal of old versions and of the files that only they use."""
