"""Merge insert."""
