"""The files of one table, typed: manifests, transactions, deletion files, data files, refs."""
