"""Check everything that a manifest file states: its sections, schema, fragments, row ids, indices, flags and config.

    [dictionary values]  [IndexSection]  [Transaction]  [Manifest]  [footer]      every byte belongs to one of them

Reads the manifest, the transaction file and the sizes of index files, nothing else. A statement that contradicts
another one is damage; bytes that this release does not understand are reported as not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, cast

import numpy as np
import pyroaring
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from lancetable.commit.gc.cleanup import parse_duration
from lancetable.errors import InvalidInputError, LanceError, NotFoundError, StoreError, UnsupportedFeatureError
from lancetable.file.encodings_v0_1.dictionary import items_range, values_range
from lancetable.file.kernels import varbin
from lancetable.format import flags
from lancetable.format.index import IndexMetadata, index_messages, uuid_text
from lancetable.format.paths import INDICES_DIR, join, parse_transaction_name, transaction_path
from lancetable.format.transaction import Transaction, UnknownOperation
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.proto import table_pb2, transaction_pb2
from lancetable.table.dictionaries import dictionary_fields
from lancetable.table.manifests import FOOTER_BYTES
from lancetable.table.version import TableVersion

__all__ = ["Finding", "check_manifest", "finding_of", "has_schema"]

_MAX_UNKNOWN = 10  # unknown fields that one message lists
_AUTO_CLEANUP = "lance.auto_cleanup."


class Finding(NamedTuple):
    """One result of a check: damage, or something that cannot be checked."""

    kind: str
    path: str
    detail: str
    is_damage: bool = True


def finding_of(kind: str, path: str, error: Exception, where: str = "") -> Finding:
    """Return the finding for an exception of a reader.

    A feature that this release does not have is not damage. An error of the store is a problem of access.
    """
    text = str(error) if isinstance(error, LanceError) else f"{type(error).__name__}: {error}"
    detail = f"{where}: {text}" if where else text
    if isinstance(error, UnsupportedFeatureError):
        return Finding("unsupported", path, detail, is_damage=False)
    if isinstance(error, StoreError) and not isinstance(error, NotFoundError):
        return Finding("access", path, detail)
    return Finding(kind, path, detail)


def check_manifest(version: TableVersion, data: bytes) -> Iterator[Finding]:
    """Check the manifest of an opened version, whose whole file is `data`."""
    path = version.location.path
    for kind, check in _CHECKS.items():
        try:
            yield from check(version, data)
        except Exception as error:  # noqa: PERF203 - damage that one check meets leaves the others
            yield finding_of(kind, path, error)


def has_schema(version: TableVersion) -> bool:
    """Return True if the schema can be used; if not, the check of the schema reports it."""
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
    start, stop, _ = next(each for each in sections if each[2] == "Manifest message")
    manifest.ParseFromString(data[start + 4 : stop])
    yield from _unread(manifest, data[start + 4 : stop], "Manifest message", path)
    section = version.file.index_section(version.store)
    if section is not None:
        try:
            yield from _unread(table_pb2.IndexSection.FromString(section), section, "IndexSection", path)
        except DecodeError:
            yield Finding("index", path, "the IndexSection does not parse")


def _sections(version: TableVersion, data: bytes) -> Iterator[tuple[int, int, str]]:
    """Return (start, end, name) of the sections of a manifest file, including the footer."""
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
    """Return the bytes of a message that this release does not understand or cannot reproduce."""
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    if known.ByteSize() != message.ByteSize():
        unknown = ", ".join(_unknown_fields(message, name)) or "unknown fields"
        yield Finding("not understood", path, f"{unknown} in the {name}", is_damage=False)
        return
    written = message.SerializeToString()
    # Other writers leave out empty keys and values of maps, and order the entries of a map in their own way.
    missing = len(data) - len(written)
    reordered = missing == 0 and not np.array_equal(_histogram(written), _histogram(data))
    if missing > 0 or reordered:
        what = f"{missing} bytes" if missing > 0 else "some bytes"
        yield Finding(
            "not understood", path, f"{what} of the {name} that writing it again does not reproduce", is_damage=False
        )


def _histogram(data: bytes) -> Any:
    return np.bincount(np.frombuffer(data, np.uint8), minlength=256)


def _unknown_fields(message: Message, name: str) -> list[str]:
    found: list[str] = []
    waiting: list[tuple[Message, str]] = [(message, name)]
    while waiting and len(found) < _MAX_UNKNOWN:
        each, owner = waiting.pop()
        found += [f"field {field.field_number} of {owner}" for field in cast("Iterable[Any]", UnknownFieldSet(each))]
        for descriptor, value in each.ListFields():
            if descriptor.message_type is None:
                continue
            if descriptor.message_type.GetOptions().map_entry:
                of_messages = descriptor.message_type.fields_by_name["value"].message_type is not None
                children = list(value.values()) if of_messages else []
            else:
                children = [value] if isinstance(value, Message) else list(value)
            waiting += [(child, descriptor.message_type.name) for child in children]
    return found[:_MAX_UNKNOWN]


# --- transaction ------------------------------------------------------------------------------------------------------


def _check_transaction(version: TableVersion, data: bytes) -> Iterator[Finding]:
    """Check that the inline transaction parses and equals that of the transaction file."""
    path, name = version.location.path, version.manifest.transaction_file
    inline = version.file.transaction_section(version.store)
    file_path = None if name is None else transaction_path(version.base, name)
    stored = None
    if file_path is not None:
        try:
            stored = bytes(version.store.read_all(file_path))
        except NotFoundError:
            if inline is None:
                yield Finding("transaction", file_path, "the transaction file is missing, and none is inline")
    parsed = []
    for place, content in ((path, inline), (file_path, stored)):
        if content is None or place is None:
            continue
        try:
            transaction = Transaction.from_bytes(content, place)
        except LanceError as error:
            yield finding_of("transaction", place, error)
            continue
        parsed.append(transaction)
        if isinstance(transaction.operation, UnknownOperation):
            yield Finding("not understood", place, "the operation of the transaction", is_damage=False)
        else:
            yield from _unread(transaction_pb2.Transaction.FromString(content), content, "Transaction", place)
    if inline is not None and stored is not None and inline != stored and len(parsed) == 2:
        one, other = (transaction_pb2.Transaction.FromString(each) for each in (inline, stored))
        if one != other:
            assert file_path is not None
            yield Finding("transaction", file_path, f"it differs from the transaction in {path}")
    named = None if name is None else parse_transaction_name(name)
    if named is not None and parsed and parsed[0].uuid != named[1]:
        yield Finding("transaction", path, f"the transaction is {parsed[0].uuid}, its file name is {name}")


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
    yield from _attempt(path, "commit time", lambda: manifest.timestamp)
    yield from _attempt(path, "data format", lambda: manifest.file_version)
    bases = [base.id for base in manifest.message.base_paths]
    twice = sorted({base for base in bases if bases.count(base) > 1})
    if twice:
        yield Finding("facts", path, f"base path {twice[0]} occurs twice")
    yield from (Finding("config", path, detail) for detail in _config_problems(manifest.message.config))


def _attempt(path: str, name: str, read: Callable[[], object]) -> Iterator[Finding]:
    try:
        read()
    except Exception as error:
        yield finding_of("facts", path, error, name)


def _config_problems(config: Any) -> Iterator[str]:
    readers: dict[str, Callable[[str], Any]] = {
        "interval": int,
        "older_than": parse_duration,
        "retain_versions": int,
        "delete_rate_limit": int,
    }
    for key, read in readers.items():
        value = config.get(_AUTO_CLEANUP + key)
        if value is not None and not _is_valid(read, value):
            yield f"{_AUTO_CLEANUP}{key} is {value!r:.100}, so no automatic cleanup runs; set a valid value"


def _is_valid(read: Callable[[str], Any], value: str) -> bool:
    try:
        found = read(value)
    except (ValueError, InvalidInputError):
        return False
    return not isinstance(found, int) or found >= 1


def _check_flags(version: TableVersion, data: bytes) -> Iterator[Finding]:
    """Check that the flags required by the contents are set."""
    manifest, path = version.manifest, version.location.path
    message = manifest.message
    try:
        indices = index_messages(version.file.index_section(version.store), path)
    except LanceError:
        indices = []  # reported as damage of the section
    stable = any(fragment.WhichOneof("row_id_sequence") for fragment in message.fragments)
    reader, writer = flags.compute(message, stable_row_ids=stable, indices=indices)
    for word, required, found in (
        ("reader", reader, manifest.reader_flags),
        ("writer", writer & ~flags.NO_TRANSACTION_FILE, manifest.writer_flags),
    ):
        missing = required & ~found
        if missing:
            names = ", ".join(flags.describe(missing))
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
    for place in range(len(fragments)):
        try:
            fragment = fragments[place]
            for file in fragment.files:
                version.data_file_path(file)
            if fragment.deletion_file is not None:
                version.deletion_file_path(fragment.id, fragment.deletion_file)
        except Exception as error:  # noqa: PERF203 - each fragment by itself
            yield finding_of("fragment", path, error, f"fragment {int(ids[place])}")


def _check_indices(version: TableVersion, data: bytes) -> Iterator[Finding]:
    """Check the records of secondary indices and that their files exist; file contents are not read."""
    path = version.location.path
    try:
        messages = index_messages(version.file.index_section(version.store), path)
    except LanceError as error:
        yield finding_of("index", path, error)
        return
    fields = {field.id for field in version.manifest.message.fields}
    for message in messages:
        try:
            index = IndexMetadata.from_proto(message)
        except LanceError as error:
            yield finding_of("index", path, error, f"index {message.name!r}")
            continue
        name = f"index {index.name!r} ({index.uuid})"
        missing = [each for each in index.fields if each not in fields]
        if missing:
            yield Finding("index", path, f"{name} is on field {missing[0]}, which the schema does not have")
        if index.fragment_bitmap is not None:
            try:
                pyroaring.BitMap.deserialize(index.fragment_bitmap)
            except Exception as error:
                yield Finding("index", path, f"{name}: the bitmap of its fragments does not parse: {error}")
        if index.base_id is not None:
            if index.base_id not in version.manifest.base_paths:
                yield Finding("index", path, f"{name} lies below base path {index.base_id}, which is not listed")
            continue
        yield from _check_index_files(version, index, name)


def _check_index_files(version: TableVersion, index: IndexMetadata, name: str) -> Iterator[Finding]:
    folder = join(version.base, f"{INDICES_DIR}/{uuid_text(index.uuid.bytes)}")
    for file in index.files:
        file_path = f"{folder}/{file.path}"
        try:
            size = version.store.find(file_path)
        except LanceError as error:
            yield finding_of("index", file_path, error, name)
            continue
        if size is None:
            yield Finding("index", file_path, f"{name}: the file is missing")
        elif file.size_bytes and size != file.size_bytes:
            yield Finding("index", file_path, f"{name}: {size} bytes, the manifest has {file.size_bytes}")
    yield Finding("index", folder, f"the content of {name}", is_damage=False)


_CHECKS: dict[str, Callable[[TableVersion, bytes], Iterator[Finding]]] = {
    "section": _check_sections,
    "transaction": _check_transaction,
    "schema": _check_schema,
    "facts": _check_facts,
    "flags": _check_flags,
    "fragment": _check_fragments,
    "index": _check_indices,
}
