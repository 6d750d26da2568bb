"""Coverage-guided fuzzing of every decoder of untrusted bytes, with atheris; run it with `scripts/fuzz`.

    targets.py      the list of targets
    target.py       a decoder with its seeds and its mutation
    files.py        targets: data files of each version
    indexes.py      targets: index files, sets of rows, entries of indexes, the fragment reuse index
    metadata.py     targets: manifests, transactions, deletion files, row id and row version sequences
    values.py       targets: zone maps, JSONB, FSST, bit packing, mini-blocks
    seeds.py        small data files, one for each type and encoding
    containers.py   mutation of data files that keeps positions and sizes correct
    mutate.py       mutation of bytes, numbers and protobuf messages
    child.py        one target under atheris, in a process of its own
    __main__.py     the driver

A decoder may return or raise one of the library's errors. Any other exception, a crash, more than 2 seconds of CPU time
and more than 1 GiB of memory are findings.
"""
