"""Compressive encodings: one module for each arm of CompressiveEncoding."""
