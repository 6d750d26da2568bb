"""Encodings of data files of version 2.0."""
