"""Encodings of 0.1 files. Rows are divided into batches; each batch has one page per field."""
