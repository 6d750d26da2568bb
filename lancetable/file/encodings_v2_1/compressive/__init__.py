"""Compressive encodings: one module for each oneof case of CompressiveEncoding."""
