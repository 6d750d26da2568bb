"""Checks of a manifest file: sections, transaction, schema, properties, flags, fragments and indices.

    [dictionary values]  [IndexSection]  [Transaction]  [Manifest]  [footer]      every byte belongs to one of them

Only the manifest, the transaction file and the sizes of index files are read. Contradictions between parts are damage.
Bytes that this release does not understand are reported as not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, cast

import numpy as np
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from lancetable.commit.cleanup import auto_cleanup
from lancetable.errors import CorruptFileError, LanceError, NotFoundError
from lancetable.file.encodings_v0_1.dictionary import items_range, values_range
from lancetable.file.kernels import varbin
from lancetable.format import feature_flags
from lancetable.format.index import IndexFile, IndexMetadata, index_messages, uuid_text
from lancetable.format.paths import INDICES_DIR, check_relative, join, parse_transaction_name, transaction_path
from lancetable.format.roaring import parse_bitmap
from lancetable.format.transaction import Transaction, UnknownOperation
from lancetable.ops.maintain.fsck.report import Finding, finding_of, findings_of
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.proto import table_pb2, transaction_pb2
from lancetable.table.legacy_dictionaries import dictionary_fields
from lancetable.table.manifest_files import FOOTER_BYTES
from lancetable.table.version import TableVersion

_MAX_UNKNOWN = 10  # unknown fields listed in one message


def check_manifest(version: TableVersion, data: bytes) -> Iterator[Finding]:
    """Check the manifest of an opened version, whose whole file is `data`."""
    for kind, check in _CHECKS.items():
        yield from findings_of(kind, version.location.path, partial(check, version, data))


def has_schema(version: TableVersion) -> bool:
    """Return True if the schema can be used; otherwise `_check_schema` reports the reason."""
    try:
        version.schema.to_storage_arrow()
    except Exception:
        return False
    return True


# --- sections ---------------------------------------------------------------------------------------------------------


def _check_sections(version: TableVersion, data: bytes) -> Iterator[Finding]:
    """Yield a finding for bytes that do not belong to a section, and for sections that do not parse."""
    path = version.location.path
    sections = sorted(_sections(version, data))
    end = 0
    for start, stop, name in sections:
        if start > end:
            yield Finding("section", path, f"bytes {end} to {start} belong to no section (next: {name})")
        elif start < end:
            yield Finding("section", path, f"the {name} at byte {start} begins inside the section before it")
        end = max(end, stop)
    manifest = table_pb2.Manifest()
    start, stop = next((start, stop) for start, stop, name in sections if name == "Manifest message")
    manifest.ParseFromString(data[start + 4 : stop])
    yield from _unread(manifest, data[start + 4 : stop], "Manifest message", path)
    section = version.file.index_section(version.store)
    if section is not None:
        try:
            yield from _unread(table_pb2.IndexSection.FromString(section), section, "IndexSection", path)
        except DecodeError:
            yield Finding("index", path, "the IndexSection does not parse")


def _sections(version: TableVersion, data: bytes) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, name) of the sections of a manifest file, including the footer."""
    size, message = len(data), version.manifest.message
    position = int.from_bytes(data[-FOOTER_BYTES : 8 - FOOTER_BYTES], "little")
    yield size - FOOTER_BYTES, size, "footer"
    yield position, size - FOOTER_BYTES, "Manifest message"
    starts = {"IndexSection": version.manifest.index_section, "Transaction": version.manifest.transaction_section}
    if message.HasField("transaction_section_deprecated") and message.HasField("transaction_section"):
        old = message.transaction_section_deprecated
        if old != message.transaction_section:
            starts["old Transaction"] = old
    for name, start in starts.items():
        if start is not None:
            length = int.from_bytes(data[start : start + 4], "little")
            yield start, start + 4 + length, name
    for field in dictionary_fields(version) if has_schema(version) else ():
        assert field.dictionary is not None
        kind = field.data_type.value_type
        where = items_range(kind, *field.dictionary, size, field.name)
        if varbin.offset_dtype(kind) is not None:
            values = values_range(data[where.start : where.end], size, field.name)
            yield values.start, values.end, f"dictionary of {field.name!r}"
        yield where.start, where.end, f"dictionary of {field.name!r}"


def _unread(message: Message, data: bytes, name: str, path: str) -> Iterator[Finding]:
    """Yield a finding for bytes of a message that this release does not understand or does not reproduce."""
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    if known.ByteSize() != message.ByteSize():
        unknown = ", ".join(_unknown_fields(message, name)) or "unknown fields"
        yield Finding("not understood", path, f"{unknown} in the {name}", is_damage=False)
        return
    written = message.SerializeToString()
    # Other writers omit empty keys and values of maps, and order map entries differently.
    missing = len(data) - len(written)
    reordered = missing == 0 and not np.array_equal(_histogram(written), _histogram(data))
    if missing > 0 or reordered:
        amount = f"{missing} bytes" if missing > 0 else "some bytes"
        detail = f"{amount} of the {name} that are not reproduced when it is written again"
        yield Finding("not understood", path, detail, is_damage=False)


def _histogram(data: bytes) -> Any:
    return np.bincount(np.frombuffer(data, np.uint8), minlength=256)


def _unknown_fields(message: Message, name: str) -> list[str]:
    fields = [f"field {field.field_number} of {name}" for field in cast("Iterable[Any]", UnknownFieldSet(message))]
    for descriptor, value in message.ListFields():
        kind = descriptor.message_type
        if kind is None or len(fields) >= _MAX_UNKNOWN:
            continue
        if kind.GetOptions().map_entry:
            children = list(value.values()) if kind.fields_by_name["value"].message_type is not None else []
        else:
            children = [value] if isinstance(value, Message) else list(value)
        for child in children:
            fields += _unknown_fields(child, kind.name)
    return fields[:_MAX_UNKNOWN]


# --- transaction ------------------------------------------------------------------------------------------------------


def _check_transaction(version: TableVersion, data: bytes) -> Iterator[Finding]:
    """Check that the inline transaction parses and equals the transaction in the transaction file."""
    path, name = version.location.path, version.manifest.transaction_file
    inline = version.file.transaction_section(version.store)
    file_path = None if name is None else transaction_path(version.base, name, path)
    stored = None
    if file_path is not None:
        try:
            stored = bytes(version.store.read_all(file_path))
        except NotFoundError:
            if inline is None:
                yield Finding("transaction", file_path, "the transaction file is missing, and none is inline")
    parsed = []
    for source, content in ((path, inline), (file_path, stored)):
        if content is None or source is None:
            continue
        try:
            transaction = Transaction.from_bytes(content, source)
        except LanceError as error:
            yield finding_of("transaction", source, error)
            continue
        parsed.append(transaction)
        if isinstance(transaction.operation, UnknownOperation):
            yield Finding("not understood", source, "the operation of the transaction", is_damage=False)
        else:
            yield from _unread(transaction_pb2.Transaction.FromString(content), content, "Transaction", source)
    if inline is not None and stored is not None and file_path is not None and len(parsed) == 2:
        messages = map(transaction_pb2.Transaction.FromString, (inline, stored))
        if inline != stored and next(messages) != next(messages):
            yield Finding("transaction", file_path, f"transaction file differs from the inline transaction in {path}")
    named = None if name is None else parse_transaction_name(name)
    if named is not None and parsed and parsed[0].uuid != named[1]:
        yield Finding("transaction", path, f"the transaction has uuid {parsed[0].uuid}, but its file is named {name}")


# --- schema, numbers, flags -------------------------------------------------------------------------------------------


def _check_schema(version: TableVersion, data: bytes) -> Iterator[Finding]:
    """Check that the fields form a tree of known types, and that a scan of all columns can be planned."""
    version.schema.to_arrow()
    version.schema.to_storage_arrow()
    plan_scan(version, ScanOptions())
    for field in version.schema.walk():
        for child in field.children:
            if child.parent_id != field.id and child.id >= 0:
                yield Finding(
                    "schema", version.location.path, f"field {child.id} has parent {child.parent_id}, not {field.id}"
                )


def _check_facts(version: TableVersion, data: bytes) -> Iterator[Finding]:
    """Check the commit time, data format, base paths and config."""
    manifest, path = version.manifest, version.location.path
    yield from findings_of("facts", path, lambda: manifest.timestamp, "commit time")
    yield from findings_of("facts", path, lambda: manifest.file_version, "data format")
    bases = [base.id for base in manifest.message.base_paths]
    twice = sorted({base for base in bases if bases.count(base) > 1})
    if twice:
        yield Finding("facts", path, f"base path {twice[0]} occurs twice")
    yield from (Finding("config", path, detail) for detail in auto_cleanup.invalid_entries(manifest.message.config))


def _check_flags(version: TableVersion, data: bytes) -> Iterator[Finding]:
    """Check that the flags required by the contents are set."""
    manifest, path = version.manifest, version.location.path
    message = manifest.message
    try:
        indices = index_messages(version.file.index_section(version.store), path)
    except LanceError:
        indices = []  # reported by the check of the section
    stable = any(fragment.WhichOneof("row_id_sequence") for fragment in message.fragments)
    reader, writer = feature_flags.compute(message, stable_row_ids=stable, indices=indices)
    for word, required, found in (
        ("reader", reader, manifest.reader_flags),
        ("writer", writer & ~feature_flags.NO_TRANSACTION_FILE, manifest.writer_flags),
    ):
        missing = required & ~found
        if missing:
            names = ", ".join(feature_flags.describe(missing))
            yield Finding("flags", path, f"the {word} feature flags lack {names}, which the content requires")


# --- fragments and indices --------------------------------------------------------------------------------------------


def _check_fragments(version: TableVersion, data: bytes) -> Iterator[Finding]:
    """Check that fragment ids are valid and that each record can be used."""
    manifest, path = version.manifest, version.location.path
    fragments = manifest.fragments
    ids = fragments.ids()
    highest = manifest.max_fragment_id
    if highest is not None and len(ids) and int(ids.max()) > highest:
        yield Finding("fragment", path, f"fragment {int(ids.max())} is above the highest fragment id {highest}")
    for position, fragment_id in enumerate(ids.tolist()):
        check = partial(_check_paths, version, position)
        yield from findings_of("fragment", path, check, f"fragment {fragment_id}")


def _check_paths(version: TableVersion, position: int) -> None:
    """Derive the paths of the files of a fragment, which raises an error for an invalid record."""
    fragment = version.manifest.fragments[position]
    for file in fragment.files:
        version.data_file_path(file)
    if fragment.deletion_file is not None:
        version.deletion_file_path(fragment.id, fragment.deletion_file)


def _check_indices(version: TableVersion, data: bytes) -> Iterator[Finding]:
    """Check the records of secondary indices and that their files exist; file contents are not read."""
    path = version.location.path
    for message in index_messages(version.file.index_section(version.store), path):
        yield from findings_of("index", path, partial(_check_index, version, message), f"index {message.name!r}")


def _check_index(version: TableVersion, message: table_pb2.IndexMetadata) -> Iterator[Finding]:
    path = version.location.path
    index = IndexMetadata.from_proto(message)
    name = f"index {index.name!r} ({index.uuid})"
    missing = sorted(set(index.fields) - {field.id for field in version.manifest.message.fields})
    if missing:
        yield Finding("index", path, f"{name} is on field {missing[0]}, which is not in the schema")
    if index.fragment_bitmap is not None:
        try:
            parse_bitmap(index.fragment_bitmap, path, max_count=1 << 32)
        except CorruptFileError as error:
            yield Finding("index", path, f"{name}: invalid bitmap of covered fragments: {error}")
    if index.base_id is not None:
        if index.base_id not in version.manifest.base_paths:
            yield Finding("index", path, f"{name} is below base path {index.base_id}, which the manifest does not list")
        return
    folder = join(version.base, f"{INDICES_DIR}/{uuid_text(index.uuid.bytes)}")
    for file in index.files:
        yield from findings_of("index", folder, partial(_check_index_file, version, folder, file, name), name)


def _check_index_file(version: TableVersion, folder: str, file: IndexFile, name: str) -> Iterator[Finding]:
    path = join(folder, check_relative(file.path, version.location.path))
    size_bytes = version.store.find(path)
    if size_bytes is None:
        yield Finding("index", path, f"{name}: the file is missing")
    elif file.size_bytes and size_bytes != file.size_bytes:
        yield Finding("index", path, f"{name}: the file has {size_bytes} bytes, the manifest records {file.size_bytes}")


_CHECKS: dict[str, Callable[[TableVersion, bytes], Iterator[Finding]]] = {
    "section": _check_sections,
    "transaction": _check_transaction,
    "schema": _check_schema,
    "facts": _check_facts,
    "flags": _check_flags,
    "fragment": _check_fragments,
    "index": _check_indices,
}
