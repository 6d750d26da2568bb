"""Appends and overwrites."""
