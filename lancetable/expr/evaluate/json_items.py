"""Items of many JSONB values at once: the members, elements and scalars that a path selects.

    documents     {"x": 3}   [7, 8]        null   {"x": "a"}
    open          row 0      row 1                row 3           whole documents
    members "x"   3                               "a"
    elements                 7, 8                                 two items of row 1

An item is a range of bytes, so no step copies or decodes values. The entries of all containers are parsed together, and
each offset is checked before it is used; see `format/jsonb.py` for the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.kernels.miniblock import gather_rows
from lancetable.file.kernels.varbin import gather, offsets_of
from lancetable.format import jsonb

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

Range: TypeAlias = tuple[int, int]
"""The first and the last index; negative indexes count from the end."""

_FORMATS: Final = {jsonb.SIGNED: ">i", jsonb.UNSIGNED: ">u", jsonb.FLOAT: ">f"}
_MAX_I64: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Items:
    """Items in the order of their rows; a row can have none or several.

    Item i has the kind `kinds[i]` and the payload `data[starts[i]:ends[i]]`, in the document of row `rows[i]`.
    """

    data: npt.NDArray[np.uint8]
    rows: Ints
    kinds: Ints
    starts: Ints
    ends: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> jsonb.Item:
        return int(self.kinds[number]), self.data[self.starts[number] : self.ends[number]].tobytes()

    def __iter__(self) -> Iterator[jsonb.Item]:
        return map(self.__getitem__, range(len(self)))

    def select(self, selected: Bools | Ints | slice) -> Items:
        """Return some items."""
        columns = (self.rows, self.kinds, self.starts, self.ends)
        return Items(self.data, *(column[selected] for column in columns))


class Numbers(NamedTuple):
    """Numbers: whether each is an integer of 64 bits, its value as such, and its value as float64."""

    is_integer: Bools
    integers: Ints
    floats: npt.NDArray[np.float64]


class _Entries(NamedTuple):
    """The entries of containers: keys of objects, then their values, or elements of arrays.

    `parents` are the numbers of the containers among the items, which have `counts` keys or elements. `numbers` count
    the entries of each container from 0.
    """

    parents: Ints
    counts: Ints
    is_object: Bools
    numbers: Ints
    kinds: Ints
    starts: Ints
    ends: Ints

    @property
    def spans(self) -> tuple[Ints, Ints, Ints]:
        """Kinds, starts and ends."""
        return self.kinds, self.starts, self.ends


def open_documents(documents: pa.Array) -> Items:
    """Return whole documents, an array of large binaries; none for nulls. Raises CorruptFileError, as do all others."""
    offsets, content = offsets_of(documents), documents.buffers()[2]
    data = np.empty(0, np.uint8) if content is None or not content.size else np.frombuffer(content, np.uint8)
    rows = np.flatnonzero(np.asarray(documents.is_valid()))
    starts, ends = offsets[:-1][rows], offsets[1:][rows]
    kinds = np.full(len(rows), jsonb.CONTAINER, np.int64)
    scalar = np.flatnonzero(_words(data, starts, ends) & jsonb.FORMS == jsonb.SCALAR)
    kinds[scalar] = _words(data, starts[scalar] + 4, ends[scalar]) >> 28
    starts[scalar] += 8
    return Items(data, rows, kinds, starts, ends)


def members(items: Items, name: str) -> Items:
    """Return the members of objects with a name."""
    entries = _entries(items)
    return _children(items, entries, _values_of_key(items, entries, name))


def members_or_elements(items: Items, key: str) -> Items:
    """Return the members of objects with a name, and the elements of arrays with it as their index."""
    entries = _entries(items)
    found = _values_of_key(items, entries, key)
    if key.isascii() and key.isdigit():
        index = min(int(key), jsonb.MAX_COUNT)
        found = np.append(found, np.flatnonzero(~entries.is_object & (entries.numbers == index)))
    return _children(items, entries, found)


def all_members(items: Items) -> Items:
    """Return all members of objects."""
    entries = _entries(items)
    return _children(items, entries, np.flatnonzero(entries.is_object & (entries.numbers >= entries.counts)))


def elements(items: Items) -> Items:
    """Return all elements of arrays."""
    entries = _entries(items)
    return _children(items, entries, np.flatnonzero(~entries.is_object))


def elements_or_items(items: Items) -> Items:
    """Return all elements of arrays, and the other items."""
    entries = _entries(items)
    inner = np.flatnonzero(~entries.is_object)
    others = np.flatnonzero(~is_array(items))
    columns = (items.kinds, items.starts, items.ends)
    parents = np.append(entries.parents[inner], others)
    both = (np.append(mine[inner], whole[others]) for mine, whole in zip(entries.spans, columns))
    return _sorted(items, parents, *both)


def elements_in(items: Items, ranges: tuple[Range, ...]) -> Items:
    """Return the elements of arrays in some ranges of indexes, for each array in the order of the ranges."""
    entries = _entries(items)
    found = []
    for bounds in ranges:
        first, last = (entries.counts + index if index < 0 else index for index in bounds)
        is_inside = (entries.numbers >= first) & (entries.numbers <= last)
        found.append(np.flatnonzero(~entries.is_object & is_inside))
    return _children(items, entries, np.concatenate(found))


def is_array(items: Items) -> Bools:
    """Return whether each item is an array."""
    found: Bools = items.kinds == jsonb.CONTAINER
    found[found] = _words(items.data, items.starts[found], items.ends[found]) & jsonb.FORMS == jsonb.ARRAY
    return found


def values_of_type(items: Items, data_type: pa.DataType) -> tuple[Ints, pa.Array]:
    """Return the numbers of the items of a type, and their values; integers are also numbers of type float64.

    The type is string, int64, float64 or bool. Invalid UTF-8 is replaced.
    """
    if data_type == pa.bool_():
        found = np.flatnonzero(np.isin(items.kinds, (jsonb.FALSE, jsonb.TRUE)))
        return found, pa.array(items.kinds[found] == jsonb.TRUE)
    if data_type == pa.string():
        found = np.flatnonzero(items.kinds == jsonb.STRING)
        return found, _strings(items.select(found))
    found = np.flatnonzero(items.kinds == jsonb.NUMBER)
    numbers = numbers_of(items.select(found))
    if data_type == pa.float64():
        return found, pa.array(numbers.floats)
    assert data_type == pa.int64()
    return found[numbers.is_integer], pa.array(numbers.integers[numbers.is_integer])


def at_rows(values: pa.Array, rows: Ints, num_rows: int) -> pa.Array:
    """Return an array of `num_rows` rows with values at distinct rows, and nulls at the others."""
    numbers = np.full(num_rows, -1, np.int64)
    numbers[rows] = np.arange(len(rows))
    return values.take(pa.array(numbers, mask=numbers < 0))


def _strings(items: Items) -> pa.Array:
    offsets, content = gather(items.starts, items.ends, items.data)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    found = pa.Array.from_buffers(pa.large_string(), len(items), buffers)
    try:
        found.validate(full=True)
    except pa.ArrowInvalid:
        found = pa.array([payload.decode("utf-8", "replace") for _, payload in items])
    return found.cast(pa.string())


def numbers_of(items: Items) -> Numbers:
    """Return the values of items that are numbers."""
    sizes = items.ends - items.starts - 1
    if (sizes < 0).any():
        raise _malformed("a number without bytes")
    tags = items.data[items.starts]
    is_integer = (tags == jsonb.ZERO) & (sizes == 0)
    is_known = is_integer | (np.isin(tags, jsonb.NOT_FINITE) & (sizes == 0))
    integers, floats = np.zeros(len(items), np.int64), np.where(is_integer, 0.0, np.nan)
    for tag, width in ((tag, width) for tag in _FORMATS for width in jsonb.WIDTHS):
        chosen = np.flatnonzero((tags == tag) & (sizes == width))
        if len(chosen) and (width == 8 or tag != jsonb.FLOAT):
            is_known[chosen] = True
            values = gather_rows(items.data, items.starts[chosen] + 1, width).view(f"{_FORMATS[tag]}{width}")[:, 0]
            if tag == jsonb.FLOAT:
                floats[chosen] = np.where(np.isfinite(values), values, np.nan)
            else:
                is_integer[chosen] = values <= _MAX_I64
                integers[chosen], floats[chosen] = values.astype(np.int64), values
    if not is_known.all():
        raise _malformed("unknown kind of number")
    return Numbers(is_integer, integers, floats)


def _entries(items: Items) -> _Entries:
    """Parse the entries of the containers among some items."""
    parents = np.flatnonzero(items.kinds == jsonb.CONTAINER)
    data, starts, ends = items.data, items.starts[parents], items.ends[parents]
    headers = _words(data, starts, ends)
    forms, counts = headers & jsonb.FORMS, headers & jsonb.MAX_COUNT
    is_object = forms == jsonb.OBJECT
    if not (is_object | (forms == jsonb.ARRAY)).all():
        raise _malformed("unknown kind of container")
    num_entries = np.where(is_object, 2 * counts, counts)
    payloads = starts + 4 + 4 * num_entries
    if (payloads > ends).any():
        raise _malformed("entries extend beyond the end of a container")
    container = np.repeat(np.arange(len(parents)), num_entries)
    firsts = np.cumsum(num_entries) - num_entries
    numbers = np.arange(len(container)) - firsts[container]
    words = gather_rows(data, (starts + 4)[container] + 4 * numbers, 4).view(">u4")[:, 0].astype(np.int64)
    sizes = words & jsonb.MAX_COUNT
    totals = np.append(0, np.cumsum(sizes))
    begins = totals[:-1] + (payloads - totals[firsts])[container]
    is_key = is_object[container] & (numbers < counts[container])
    if (words[is_key] >> 28 != jsonb.STRING).any():
        raise _malformed("a key is not a string")
    if (begins + sizes > ends[container]).any():
        raise _malformed("a value extends beyond the end of a container")
    return _Entries(
        parents[container],
        counts[container],
        is_object[container],
        numbers,
        words >> 28,
        begins,
        begins + sizes,
    )


def _values_of_key(items: Items, entries: _Entries, name: str) -> Ints:
    """Return the numbers of the entries that are values of a key; the last one if a key is repeated."""
    key = np.frombuffer(name.encode("utf-8", "surrogatepass"), np.uint8)
    has_size = entries.ends - entries.starts == len(key)
    keys = np.flatnonzero(entries.is_object & (entries.numbers < entries.counts) & has_size)
    keys = keys[(gather_rows(items.data, entries.starts[keys], len(key)) == key).all(axis=1)]
    parents = entries.parents[keys]
    keys = keys[parents != np.append(parents[1:], -1)]
    values: Ints = keys + entries.counts[keys]
    return values


def _children(items: Items, entries: _Entries, chosen: Ints) -> Items:
    """Return some entries as items, in the order of the items that contain them."""
    return _sorted(items, entries.parents[chosen], *(column[chosen] for column in entries.spans))


def _sorted(items: Items, parents: Ints, kinds: Ints, starts: Ints, ends: Ints) -> Items:
    order = np.argsort(parents, kind="stable")
    return Items(items.data, items.rows[parents[order]], kinds[order], starts[order], ends[order])


def _words(data: npt.NDArray[np.uint8], starts: Ints, ends: Ints) -> Ints:
    """Return the big-endian u32 at some positions of values that end at `ends`."""
    if (starts + 4 > ends).any():
        raise _malformed("unexpected end")
    return gather_rows(data, starts, 4).view(">u4")[:, 0].astype(np.int64)


def _malformed(reason: str) -> CorruptFileError:
    return CorruptFileError(f"malformed JSONB value: {reason}")
