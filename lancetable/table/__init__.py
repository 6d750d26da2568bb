"""Typed access to the files of one table: manifests, transactions, deletion files, data files and refs."""
