"""Targets: manifest and transaction files, both forms of deletion files, row id and row version sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from google.protobuf.message import Message

from integration.fuzz.mutate import Mutator
from integration.fuzz.seeds import GOLDEN
from integration.fuzz.target import Target
from lancetable.errors import LanceError
from lancetable.format.feature_flags import check_readable
from lancetable.format.index import parse_indices
from lancetable.format.manifest_naming import ManifestLocation, ManifestNamingScheme
from lancetable.format.paths import check_relative
from lancetable.format.roaring import build_roaring, parse_roaring
from lancetable.format.transaction import Transaction
from lancetable.proto import rowids_pb2, table_pb2, transaction_pb2
from lancetable.rowids import RowIdIndex, RowIdSequence, RowVersionSequence
from lancetable.store.memory import MemoryStore
from lancetable.table.arrow_deletion_file import build_arrow, parse_arrow
from lancetable.table.field_locations import FieldIndex
from lancetable.table.manifest_files import ManifestFile, pack, parse_manifest

VERSION = 7  # of all manifests, because it must be the version in the name of the file
LOCATION = ManifestLocation(VERSION, "7.manifest", None, ManifestNamingScheme.V1)
STORE = MemoryStore.private()  # empty: a manifest file is passed as a whole
MAX_VALUES = 100_000  # longer sequences are not expanded
MAX_SEED_BYTES = 8_000


# ----------------------------------------------------------------------------------------------------------- manifests


def read_manifest(data: bytes) -> None:
    """Convert all sections of a manifest, as a scan, a commit and a check do."""
    file = parse_manifest(STORE, LOCATION, data)
    manifest = file.manifest
    fragments = manifest.fragments
    _attempt(
        lambda: check_readable(manifest.reader_flags, file.location.path, writer_flags=manifest.writer_flags),
        lambda: manifest.schema.to_arrow(),
        lambda: manifest.max_field_id,
        lambda: manifest.file_version,
        lambda: manifest.timestamp,
        lambda: (manifest.config, manifest.table_metadata, manifest.schema_metadata, manifest.base_paths),
        lambda: (manifest.writer_version, manifest.branch, manifest.tag, manifest.next_row_id),
        lambda: (fragments.ids(), fragments.position(3)),
        lambda: fragments.num_rows(),
        lambda: parse_indices(file.index_section(STORE)),
        lambda: Transaction.from_bytes(file.transaction_section(STORE) or b"", "7.manifest"),
    )
    for position in range(min(len(fragments), 20)):
        _attempt(lambda position=position: _read_fragment(fragments[position]))


def _read_fragment(fragment: Any) -> None:
    FieldIndex(fragment.files)
    for file in fragment.files:
        check_relative(file.path)
    if isinstance(fragment.row_ids, bytes):
        RowIdSequence.from_bytes(fragment.row_ids, fragment.physical_rows)
    for versions in (fragment.created_at, fragment.last_updated_at):
        if isinstance(versions, bytes):
            RowVersionSequence.from_bytes(versions, fragment.physical_rows)


def _attempt(*functions: Callable[[], Any]) -> None:
    """Call functions; errors of the library do not end the input."""
    for function in functions:
        with suppress(LanceError):
            function()


def _manifest_seeds() -> Iterator[bytes]:
    for data in _golden("*/_versions/*.manifest"):
        location = ManifestLocation(_version_of(data), "7.manifest", None, ManifestNamingScheme.V1)
        file = parse_manifest(STORE, location, data)
        yield _packed(file, file.manifest.to_proto())


def _version_of(data: bytes) -> int:
    position = int.from_bytes(data[-16:-8], "little")
    return table_pb2.Manifest.FromString(data[position + 4 : -16]).version


def _packed(file: ManifestFile, message: table_pb2.Manifest, version: int = VERSION) -> bytes:
    message.version = version
    return pack(message, file.transaction_section(STORE) or b"", file.index_section(STORE))


def mutate_manifest(data: bytes, mutator: Mutator) -> bytes:
    """Change fields of the manifest, its transaction or its indices; sometimes, or if it is damaged, any bytes."""
    try:
        file = parse_manifest(STORE, LOCATION, data)
        transaction, indices = file.transaction_section(STORE), file.index_section(STORE)
    except LanceError:
        return mutator.bytes(data)
    message = file.manifest.to_proto()
    choice = mutator.random.random()
    if choice < 0.1:
        return mutator.bytes(data)
    if choice < 0.7:
        mutator.message(message)
    elif choice < 0.85:
        transaction = mutator.parsed(transaction_pb2.Transaction, transaction or b"")
    else:
        indices = mutator.parsed(table_pb2.IndexSection, indices or b"")
    return pack(message, transaction or b"", indices)


# -------------------------------------------------------------------------------------------------------- transactions


def read_transaction(data: bytes) -> None:
    """Convert a transaction and serialize it again."""
    Transaction.from_bytes(data, "t.txn").to_bytes()


def _transaction_seeds() -> Iterator[bytes]:
    yield from _golden("*/_transactions/*.txn")
    # The operations that the golden tables do not have.
    operations = transaction_pb2.Transaction.DESCRIPTOR.oneofs_by_name["operation"].fields
    for operation in operations:
        message = transaction_pb2.Transaction(uuid="1b4e28ba-2fa1-11d2-883f-0016d3cca427")
        getattr(message, operation.name).SetInParent()
        yield message.SerializeToString()


# ------------------------------------------------------------------------------------------------------ deletion files


def read_arrow(data: bytes) -> None:
    """Decode the Arrow form of a deletion vector."""
    parse_arrow(memoryview(data), "f.arrow", max_count=MAX_VALUES)


def read_roaring(data: bytes) -> None:
    """Decode the roaring form of a deletion vector, which is ascending."""
    offsets = parse_roaring(memoryview(data), "f.bin", max_count=MAX_VALUES)
    assert (offsets[1:] > offsets[:-1]).all()


def _deletion_vectors() -> list[np.ndarray]:
    few, many = np.array([0, 3, 70_000], np.uint32), np.arange(0, 9000, 3, np.uint32)
    several = np.concatenate([few + (number << 16) for number in range(5)])
    return [np.empty(0, np.uint32), few, many, np.unique(several), np.arange(70_000, dtype=np.uint32)]


def _roaring_seeds() -> Iterator[bytes]:
    import pyroaring

    yield from _golden("*/_deletions/*.bin")
    for vector in _deletion_vectors():
        yield build_roaring(vector)
        bitmap = pyroaring.BitMap(vector)
        bitmap.run_optimize()
        yield bytes(bitmap.serialize())


def _arrow_seeds() -> Iterator[bytes]:
    yield from _golden("*/_deletions/*.arrow")
    yield from (build_arrow(vector) for vector in _deletion_vectors() if len(vector) < 10_000)


# ----------------------------------------------------------------------------------------------------------- sequences


def read_row_ids(data: bytes) -> None:
    """Decode a row id sequence, derive others from it, and look up ids in its index."""
    sequence = RowIdSequence.from_bytes(data)
    index = RowIdIndex.build([(0, sequence, np.array([1], np.uint32))], "7.manifest")
    _attempt(lambda: index.find(np.array([0, 1, 5, 1 << 40, (1 << 64) - 1], np.uint64)))
    if sequence.num_rows <= MAX_VALUES:
        values = sequence.values()
        assert len(values) == sequence.num_rows
        again = RowIdSequence.from_bytes(sequence.to_bytes(), len(values))
        assert np.array_equal(again.values(), values)
        half = len(values) // 2
        assert np.array_equal(sequence.slice(half, len(values)).values(), values[half:])
        if half:
            assert np.array_equal(sequence.mask(np.array([half])).values(), np.delete(values, half))
        _attempt(lambda: index.find(values[:100]))


def read_row_versions(data: bytes) -> None:
    """Decode a row version sequence and derive others from it."""
    sequence = RowVersionSequence.from_bytes(data)
    rows = sequence.num_rows
    sequence.at(np.unique(np.array([0, rows // 2, max(rows - 1, 0)]))[: rows or 0])
    assert RowVersionSequence.from_bytes(sequence.to_bytes(), rows) == sequence
    if rows <= MAX_VALUES:
        values = sequence.values()
        assert len(values) == rows
        half = rows // 2
        assert np.array_equal(sequence.slice(half, rows).values(), values[half:])
        if half:
            assert np.array_equal(sequence.mask(np.array([half])).values(), np.delete(values, half))


def _row_id_seeds() -> Iterator[bytes]:
    random = np.random.default_rng(1)
    sequences = [
        RowIdSequence.from_range(20, 50),
        RowIdSequence.from_values(np.delete(np.arange(100), [3, 7])),
        RowIdSequence.from_values(np.flatnonzero(random.random(300) < 0.5)),
        RowIdSequence.from_values(np.array([3, 900, 17_000, 1 << 20, 1 << 40])),
        RowIdSequence.from_values(random.permutation(50)),
    ]
    yield from (sequence.to_bytes() for sequence in sequences)
    yield RowIdSequence.concat(sequences).to_bytes()
    # Many short arrays, which are merged.
    arrays = [np.arange(start, start + 90, 9) for start in range(0, 4000, 100)]
    message = rowids_pb2.RowIdSequence()
    for array in arrays:
        message.segments.add().sorted_array.u16_array.base = int(array[0])
        message.segments[-1].sorted_array.u16_array.offsets = (array - array[0]).astype("<u2").tobytes()
    yield message.SerializeToString()


def _row_version_seeds() -> Iterator[bytes]:
    yield RowVersionSequence.uniform(30, 4).to_bytes()
    yield RowVersionSequence.from_values(np.arange(40) // 7 + 1).to_bytes()
    message = rowids_pb2.RowDatasetVersionSequence.FromString(RowVersionSequence.uniform(3, 2).to_bytes())
    for data in _row_id_seeds():
        segments = rowids_pb2.RowIdSequence.FromString(data).segments
        message.runs.add(version=9).span.CopyFrom(segments[0])
    yield message.SerializeToString()


# -------------------------------------------------------------------------------------------------------------- common


def _golden(pattern: str) -> Iterator[bytes]:
    for path in sorted(GOLDEN.glob(pattern)):
        data = path.read_bytes()
        if len(data) <= MAX_SEED_BYTES:
            yield data


def _message_target(
    name: str, kind: type[Message], function: Callable[[bytes], None], seeds: Callable[[], Iterator[bytes]]
) -> Target:
    return Target(name, function, seeds, lambda data, mutator: mutator.parsed(kind, data))


TARGETS: Sequence[Target] = [
    Target("manifest", read_manifest, _manifest_seeds, mutate_manifest),
    _message_target("transaction", transaction_pb2.Transaction, read_transaction, _transaction_seeds),
    Target("deletions-arrow", read_arrow, _arrow_seeds, lambda data, mutator: mutator.buffer(data)),
    Target("deletions-roaring", read_roaring, _roaring_seeds, lambda data, mutator: mutator.buffer(data)),
    _message_target("row-ids", rowids_pb2.RowIdSequence, read_row_ids, _row_id_seeds),
    _message_target("row-versions", rowids_pb2.RowDatasetVersionSequence, read_row_versions, _row_version_seeds),
]
