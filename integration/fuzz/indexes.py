"""Targets: files of the kinds of indexes, sets of rows, entries of indexes, and the fragment reuse index."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyroaring

from integration.fuzz.containers import cross_files, mutate_file
from integration.fuzz.metadata import LOCATION
from integration.fuzz.mutate import Mutator
from integration.fuzz.target import Target
from lancetable.errors import LanceError
from lancetable.format.index import IndexMetadata, parse_indices
from lancetable.format.manifest_naming import ManifestLocation
from lancetable.format.schema import Schema
from lancetable.format.version import FileVersion
from lancetable.index.fragment_reuse import read_fragment_reuse
from lancetable.index.index_files import SegmentWriter
from lancetable.index.kind import ROW, VALUE, IndexKind, kind_named, kind_of_details
from lancetable.index.queries import AtJsonPath, Contains, HasLabels, IndexQuery, IsIn, IsNull, Range, StartsWith
from lancetable.index.roaring_containers import ROARING_TREEMAP, ROW_ADDR_TREE_MAP, parse
from lancetable.index.row_mapping import MovedGroup, OldFragment, RowMapping
from lancetable.index.row_sets import RowSet
from lancetable.index.segments import SegmentFiles
from lancetable.index_metadata import Index, describe_settings
from lancetable.proto import index_pb2, table_pb2
from lancetable.store.base import ObjectStore
from lancetable.store.memory import MemoryStore
from lancetable.table.fragment_reuse_entry import TYPE_URL, index_directory
from lancetable.table.metadata_cache import TableCache

ROWS = 90
MAX_ROWS = 100_000  # larger sets are not expanded
_UUID = uuid.UUID(int=1)
_FRAGMENTS = np.repeat(np.arange(3, dtype=np.uint64) << np.uint64(32), ROWS // 3)
ADDRESSES = _FRAGMENTS + np.tile(np.arange(ROWS // 3, dtype=np.uint64), 3)
_OLD = OldFragment(1, ROWS // 3, ROWS // 3 - 1, np.array([4], np.uint32))
MAPPING = RowMapping([MovedGroup([_OLD], [(7, ROWS // 3 - 1)])])


@dataclass(frozen=True)
class _Version:
    """The parts of a version that readers of indexes use."""

    store: ObjectStore
    base: str = ""
    location: ManifestLocation = LOCATION
    cache: TableCache = field(default_factory=TableCache)


# --------------------------------------------------------------------------------------------------------------- files


@dataclass(frozen=True)
class Segment:
    """A segment of a kind, of which one file is fuzzed, and queries on it."""

    kind: IndexKind
    file: str
    options: Mapping[str, Any]
    values: tuple[pa.Array, ...]
    queries: Callable[[pa.DataType], list[IndexQuery]]

    def build(self, values: pa.Array, version: FileVersion) -> tuple[dict[str, bytes], bytes]:
        """Return the files of a segment, and its details."""
        store = MemoryStore.private()
        writer = SegmentWriter(store, "", version)
        rows = pa.array(ADDRESSES)
        batches = [
            pa.record_batch([values[start : start + ROWS // 3], rows[start : start + ROWS // 3]], [VALUE, ROW])
            for start in range(0, ROWS, ROWS // 3)
        ]
        details = self.kind.build(writer, _field_of(values.type), batches, self.options)
        return {file.path: bytes(store.read_all(file.path)) for file in writer.files}, details.SerializeToString()

    def seeds(self) -> Iterator[bytes]:
        """Yield files of all types and versions."""
        for values in self.values:
            for version in (FileVersion.V2_0, FileVersion.V2_1, FileVersion.V2_2):
                yield self.build(values, version)[0][self.file]

    def read(self, data: bytes) -> None:
        """Search a segment with this file, read all of it, merge it and map its rows."""
        for values in self.values[:1]:
            files, details = self.build_once(values)
            segment = _segment_files({**files, self.file: data}, self.kind, details)
            with suppress(LanceError):
                self._use(segment, values.type)

    def build_once(self, values: pa.Array) -> tuple[dict[str, bytes], bytes]:
        """Return the other files of the segment, which are built once."""
        key = (self.file, str(values.type))
        if key not in _BUILT:
            _BUILT[key] = self.build(values, FileVersion.V2_1)
        return _BUILT[key]

    def _use(self, files: SegmentFiles, data_type: pa.DataType) -> None:
        opened = self.kind.open(files)
        stored = opened.value_type
        for query in self.queries(data_type) if stored in (None, self.kind.value_type(data_type)) else ():
            with suppress(LanceError):
                result = opened.search(query)
                assert len(result.true) >= 0 and len(result.null) >= 0
        acts: list[Callable[[], Any]] = [opened.prewarm, opened.statistics, lambda: opened.parameters]
        if stored in (None, self.kind.value_type(data_type)):
            source = (opened, lambda rows: np.ones(len(rows), np.bool_))
            acts.append(lambda: self.kind.merge(_writer(), _field_of(data_type), [source], [], {}))
        acts.append(lambda: self.kind.remap(_writer(), opened, MAPPING))
        for act in acts:
            with suppress(LanceError):
                act()


_BUILT: dict[tuple[str, str], tuple[dict[str, bytes], bytes]] = {}


def _segment_files(files: Mapping[str, bytes], kind: IndexKind, details: bytes) -> SegmentFiles:
    store = MemoryStore.private()
    entry = IndexMetadata(_UUID, "i", (0,), raw=_raw(kind.type_url, details), type_url=kind.type_url)
    segment = SegmentFiles(_Version(store), entry)  # type: ignore[arg-type]  # has the parts that readers use
    for name, data in files.items():
        store.put(f"{segment.directory}/{name}", data)
    return segment


def _raw(type_url: str, details: bytes) -> bytes:
    message = table_pb2.IndexMetadata()
    message.index_details.type_url, message.index_details.value = type_url, details
    return bytes(message.SerializeToString())


def _writer() -> SegmentWriter:
    return SegmentWriter(MemoryStore.private(), "", FileVersion.V2_1)


def _field_of(data_type: pa.DataType) -> Any:
    return Schema.from_arrow(pa.schema([pa.field("v", data_type)])).fields[0]


_NUMBERS = pa.array([None if i % 7 == 3 else i * 7919 % 23 for i in range(ROWS)], pa.int64())
_TEXTS = pa.array([None if i % 7 == 3 else f"text {i * 7919 % 23}" for i in range(ROWS)])
_FLOATS = pa.array([None if i % 7 == 3 else [0.5, -0.0, float("nan"), 2.0][i % 4] for i in range(ROWS)])
_LABELS = pa.array([None if i % 7 == 3 else ["a", "b", None, "c"][: i % 5] for i in range(ROWS)])
_VALUES = (_NUMBERS, _TEXTS, _FLOATS)


def _comparisons(data_type: pa.DataType) -> list[IndexQuery]:
    values = next(each for each in _VALUES if each.type == data_type).drop_null()
    first, second = values[1], values[4]
    found = [IsNull("v"), IsIn("v", values[:1]), IsIn("v", values[:9]), Range("v", first), Range("v", None, second)]
    return [*found, StartsWith("v", "text 1")] if data_type == pa.string() else found


def _memberships(data_type: pa.DataType) -> list[IndexQuery]:
    return [query for query in _comparisons(data_type) if isinstance(query, IsIn | IsNull)]


def _of_labels(_: pa.DataType) -> list[IndexQuery]:
    return [HasLabels("v", pa.array(labels), every) for labels in (["a"], ["a", "c"], ["z"]) for every in (False, True)]


def _of_texts(_: pa.DataType) -> list[IndexQuery]:
    return [Contains("v", "ext 1"), Contains("v", "text"), Contains("v", "nowhere")]


_SEGMENTS = {
    "index-btree-bounds": Segment(kind_named("BTREE"), "page_lookup.lance", {"zone_size": 8}, _VALUES, _comparisons),
    "index-btree-pages": Segment(kind_named("BTREE"), "page_data.lance", {"zone_size": 8}, _VALUES, _comparisons),
    "index-bitmap": Segment(kind_named("BITMAP"), "bitmap_page_lookup.lance", {}, _VALUES, _comparisons),
    "index-label-list": Segment(kind_named("LABEL_LIST"), "bitmap_page_lookup.lance", {}, (_LABELS,), _of_labels),
    "index-ngram": Segment(kind_named("NGRAM"), "ngram_postings.lance", {}, (_TEXTS,), _of_texts),
    "index-zone-map": Segment(kind_named("ZONEMAP"), "zonemap.lance", {"rows_per_zone": 8}, _VALUES, _comparisons),
    "index-bloom-filter": Segment(
        kind_named("BLOOMFILTER"),
        "bloomfilter.lance",
        {"number_of_items": 8, "probability": 0.01},
        _VALUES[:2],
        _memberships,
    ),
}


# -------------------------------------------------------------------------------------------------------- sets of rows


def read_row_sets(data: bytes) -> None:
    """Parse a set of rows in both forms, each by both parsers, which must agree."""
    forms = [
        (ROW_ADDR_TREE_MAP, RowSet.from_row_addr_tree_map, RowSet.to_row_addr_tree_map),
        (ROARING_TREEMAP, RowSet.from_roaring_treemap, RowSet.to_roaring_treemap),
    ]
    form, parse_one, serialize = forms[data[:1] == b"\1"]
    content = data[1:]
    rows = columns = None
    with suppress(LanceError):
        rows = parse_one(memoryview(content), "f")
    with suppress(LanceError):
        columns = parse(pa.array([content], pa.binary()), form, "f")
    if columns is not None and columns.num_rows <= MAX_ROWS:
        assert rows is not None and np.array_equal(rows.addresses(), columns.rows()[1])
    if rows is not None and len(rows) <= MAX_ROWS:
        assert rows.last == (int(rows.addresses()[-1]) if rows else -1)
        assert parse_one(memoryview(serialize(rows)), "f") == rows


def _row_set_seeds() -> Iterator[bytes]:
    several = RowSet.of(ADDRESSES[::2])
    runs = RowSet.of_fragments({0: 70_000, 5: 3})
    dense = RowSet.of(np.arange(0, 30_000, 2, dtype=np.uint64))
    for rows in (RowSet(), several, runs, dense):
        yield b"\0" + rows.to_row_addr_tree_map()
        yield b"\1" + rows.to_roaring_treemap()


# -------------------------------------------------------------------------------------------------------------- entries


def read_entries(data: bytes) -> None:
    """Convert the entries of an index section and their details."""
    for entry in parse_indices(data, "7.manifest"):
        acts = (partial(Index.from_format, entry), partial(_describe, entry), partial(_answer, entry))
        for act in acts:
            with suppress(LanceError):
                act()


def _describe(entry: IndexMetadata) -> None:
    describe_settings(entry.type_url, _details_of(entry), entry.name)


def _answer(entry: IndexMetadata) -> None:
    details = _details_of(entry)
    kind = kind_of_details(entry.type_url)
    version = _Version(MemoryStore.private())
    if kind is not None:
        kind = kind.for_segment(SegmentFiles(version, entry))  # type: ignore[arg-type]  # has the parts that readers use
    if kind is not None:
        _ = kind.plan_name, kind.stores_row_ids(entry.index_version or 0)
        plain = IsIn("v", pa.array([3]))
        for query in (plain, IsNull("v"), AtJsonPath("v", "x", pa.int64(), plain)):
            if kind.answers(query, details):
                kind.is_exact(query, details)


def _details_of(entry: IndexMetadata) -> bytes:
    value: bytes = table_pb2.IndexMetadata.FromString(entry.raw).index_details.value
    return value


def _entry_seeds() -> Iterator[bytes]:
    section = table_pb2.IndexSection()
    for segment in _SEGMENTS.values():
        entry = section.indices.add(name="i", fields=[0], uuid=table_pb2.UUID(uuid=_UUID.bytes))
        entry.index_details.type_url = segment.kind.type_url
        entry.index_details.value = segment.build_once(segment.values[0])[1]
        entry.fragment_bitmap = bytes.fromhex("3a300000010000000000020010000000000001000200")
    yield bytes(section.SerializeToString())
    details = index_pb2.JsonIndexDetails(path="x")
    details.target_details.type_url = kind_named("BTREE").type_url
    section = table_pb2.IndexSection()
    entry = section.indices.add(name="j", fields=[0], uuid=table_pb2.UUID(uuid=_UUID.bytes))
    entry.index_details.type_url = kind_named("JSON").type_url
    entry.index_details.value = details.SerializeToString()
    yield bytes(section.SerializeToString())


# ------------------------------------------------------------------------------------------------ fragment reuse index


def read_reuse(data: bytes) -> None:
    """Parse the fragment reuse index and map rows by it. The file next to the manifest contains the first seed."""
    version: Any = _Version(MemoryStore.private())
    entry = IndexMetadata(_UUID, "__lance_frag_reuse", raw=_raw(TYPE_URL, data), type_url=TYPE_URL)
    version.store.put(f"{index_directory(version, entry)}/{_EXTERNAL.path}", next(_inline_contents()))
    reuse = read_fragment_reuse(version, entry)
    reuse.coverage(pyroaring.BitMap(range(3)))
    _, exists = reuse.apply(ADDRESSES)
    assert len(exists) == ROWS
    reuse.current(RowSet.of(ADDRESSES))


def _inline_contents() -> Iterator[bytes]:
    content = table_pb2.FragmentReuseIndexDetails.InlineContent()
    for number, (old, new) in enumerate([((0, 1), 5), ((5, 2), 9)]):
        group = content.versions.add(dataset_version=number + 2).groups.add()
        counts = [50 if fragment == 5 else 30 for fragment in old]
        moved = RowSet.of_fragments({fragment: count - 5 for fragment, count in zip(old, counts)})
        group.changed_row_addrs = moved.to_roaring_treemap()
        for fragment, count in zip(old, counts):
            group.old_fragments.add(id=fragment, physical_rows=count, num_deleted_rows=5)
        group.new_fragments.add(id=new, physical_rows=len(moved))
        yield bytes(content.SerializeToString())


_EXTERNAL = table_pb2.ExternalFile(path="details.binpb", offset=0, size=len(next(_inline_contents())))


def _reuse_seeds() -> Iterator[bytes]:
    details = table_pb2.FragmentReuseIndexDetails()
    for content in _inline_contents():
        details.inline.ParseFromString(content)
        yield bytes(details.SerializeToString())
    yield bytes(table_pb2.FragmentReuseIndexDetails(external=_EXTERNAL).SerializeToString())


def _mutate_row_set(data: bytes, mutator: Mutator) -> bytes:
    return data[:1] + mutator.buffer(data[1:])


def _message_target(name: str, kind: Any, run: Callable[[bytes], None], seeds: Callable[[], Iterator[bytes]]) -> Target:
    return Target(name, run, seeds, lambda data, mutator: mutator.parsed(kind, data))


TARGETS = [
    *(Target(name, segment.read, segment.seeds, mutate_file, cross_files) for name, segment in _SEGMENTS.items()),
    Target("row-sets", read_row_sets, _row_set_seeds, _mutate_row_set),
    _message_target("index-entries", table_pb2.IndexSection, read_entries, _entry_seeds),
    _message_target("fragment-reuse", table_pb2.FragmentReuseIndexDetails, read_reuse, _reuse_seeds),
]
