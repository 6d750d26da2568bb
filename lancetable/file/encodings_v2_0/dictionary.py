"""Dictionary: indices into items that are stored once per page. The type of the field distinguishes two uses.

    dictionary<int8, string>  [aa, null, b]   indices 0 2 1   items aa, b, null     nulls are items
    string                    [aa, null, b]   indices 1 0 2   items aa, b           index 0 is null

Source: protos/encodings_v2_0.proto, Dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import UnsupportedFeatureError
from lancetable.file.column_interfaces import Decoded
from lancetable.file.dictionary_cache import DICTIONARIES
from lancetable.file.encodings_v2_0.base import ArrayEncoding, BufferList, ParsedMessage
from lancetable.file.encodings_v2_0.binary import encode_binary
from lancetable.file.encodings_v2_0.flat import Flat
from lancetable.file.encodings_v2_0.nullable import Nullable
from lancetable.file.footer import Page
from lancetable.file.io_scheduler import ReadPlan, Slots, count_slots, gather
from lancetable.file.kernels import native, varbin
from lancetable.file.kernels.distinct import Indexed, index_values

MIN_ROWS: Final = 100
MAX_ITEMS: Final = 99  # other readers support only 8-bit indices, of which 0 is null
_MAX_CACHED_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Dictionary(ParsedMessage):
    """Values as indices into `num_dictionary_items` items."""

    oneof_case: ClassVar[str] = "dictionary"

    indices: ArrayEncoding
    items: ArrayEncoding
    num_dictionary_items: int

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, max_gap: int) -> ReadPlan[Decoded]:
        if self.num_dictionary_items == 0:
            raise page.corrupt("the dictionary has 0 items")
        is_dictionary = pa.types.is_dictionary(data_type)
        index_type = data_type.index_type if is_dictionary else pa.uint8()
        indices_plan = self.indices.read(page, index_type, length, slots, max_gap)
        items = page.cached
        if isinstance(items, _Items) and items.encoding is self and items.data_type.equals(data_type):
            indices = yield from indices_plan
        else:
            value_type = data_type.value_type if is_dictionary else data_type
            num_items = self.num_dictionary_items
            page.check_memory(num_items)
            plan = self.items.read(page, value_type, num_items, range(num_items), max_gap)
            indices, decoded = yield from gather([indices_plan, plan])
            items = _Items.of(self, data_type, decoded.to_array(value_type))
            if items.values.nbytes <= _MAX_CACHED_BYTES:
                DICTIONARIES.put(page, items, items.values.nbytes)
        if indices.validity is not None or not indices.buffers:
            raise page.corrupt("dictionary indices are nullable")
        numbers = np.frombuffer(indices.buffers[0], index_type.to_pandas_dtype(), count_slots(slots))
        largest = int(numbers.max())
        if largest >= items.num_stored or (numbers.dtype.kind == "i" and int(numbers.min()) < 0):
            raise page.corrupt("dictionary index out of range", f"less than {items.num_stored}", largest)
        if is_dictionary:
            return items.as_dictionary(numbers)
        _check_size(page, numbers, items)
        if native is not None and items.values.null_count == 1:
            valid = numbers != 0
            validity = None if valid.all() else varbin.pack_validity(valid)
            return Decoded(len(numbers), varbin.take_items(items.values, numbers, None), validity)
        plain = pa.Array.from_buffers(index_type, len(numbers), [None, indices.buffers[0]], 0)
        return Decoded(len(numbers), array=items.values.take(plain))


class _Items(NamedTuple):
    """Decoded items of a page. Small ones are cached with the page.

    For a string field, `values` is a null followed by the items. For a dictionary field, `values` are the items that
    are not null, because Arrow consumers often cannot handle nulls in a dictionary. In this case, `present` is the mask
    of the stored items that are not null (None if all are), and `moved` is the new index of each stored item (None if
    the indices are unchanged).
    """

    encoding: Dictionary
    data_type: pa.DataType
    values: pa.Array
    num_stored: int
    present: npt.NDArray[np.bool_] | None = None
    moved: npt.NDArray[Any] | None = None

    @classmethod
    def of(cls, encoding: Dictionary, data_type: pa.DataType, items: pa.Array) -> _Items:
        num_stored = len(items)
        if not pa.types.is_dictionary(data_type):
            return cls(encoding, data_type, pa.concat_arrays([pa.nulls(1, data_type), items]), num_stored + 1)
        present = moved = None
        if items.null_count:
            present = np.asarray(items.is_valid())
            num_present = int(present.sum())
            if present[:num_present].all():
                items = items.slice(0, num_present)
            else:
                # The index of a null item may be any valid index.
                moved = np.maximum(np.cumsum(present) - 1, 0).astype(data_type.index_type.to_pandas_dtype())
                items = items.drop_null()
        if items.nbytes <= _MAX_CACHED_BYTES:
            items = pa.concat_arrays([items])  # a copy, because a cached slice would keep the file mapped
        return cls(encoding, data_type, items, num_stored, present, moved)

    def as_dictionary(self, numbers: npt.NDArray[Any]) -> Decoded:
        """Return a dictionary array of `values`; indices of null items become nulls."""
        if self.present is None:
            return Decoded(len(numbers), (pa.py_buffer(numbers),), dictionary=self.values)
        valid = self.present[numbers]
        if self.moved is not None:
            numbers = self.moved[numbers]
        elif not valid.all():
            numbers = np.where(valid, numbers, 0).astype(numbers.dtype, copy=False)
        validity = None if valid.all() else varbin.pack_validity(valid)
        return Decoded(len(numbers), (pa.py_buffer(numbers),), validity, dictionary=self.values)


def _check_size(page: Page, numbers: npt.NDArray[Any], items: _Items) -> None:
    """Raise CorruptFileError if expanded strings exceed the memory limit or the range of 32-bit offsets."""
    limit = min(page.limits.page_bytes, (1 << 31) - 1)
    total = varbin.taken_bytes(items.values, numbers, limit)
    page.check_memory(total)
    if total > limit:
        raise page.corrupt("the expanded strings are too large", f"at most {limit} bytes", total)


# ------------------------------------------------------------------------------------------------------------ encode


def encode_strings(arrays: Sequence[pa.Array], buffers: BufferList) -> Dictionary | None:
    """Encode strings as 8-bit indices, 0 for null. Returns None for few strings or too many distinct values."""
    if sum(map(len, arrays)) < MIN_ROWS:
        return None
    parts: list[Indexed] = []
    for array in arrays:
        indexed = index_values(array, MAX_ITEMS)
        if indexed is None:
            return None
        parts.append(indexed)
    found = parts[0] if len(parts) == 1 else index_values(pa.concat_arrays([part.items for part in parts]), MAX_ITEMS)
    if found is None:
        return None
    pieces, start = [], 0
    for array, (indices, items) in zip(arrays, parts):
        if len(parts) > 1 and len(items):
            indices = found.indices[start + indices]
        numbers = (indices + 1).astype(np.uint8)
        if array.null_count:
            numbers[np.asarray(array.is_null())] = 0
        pieces.append(numbers)
        start += len(items)
    items = found.items if len(found.items) else pa.nulls(1, arrays[0].type)
    index_encoding = Nullable(Flat(8, buffers.add(pieces)))
    return Dictionary(index_encoding, encode_binary([items], buffers), len(items))


def encode_dictionary(
    arrays: Sequence[pa.Array],
    buffers: BufferList,
    values: Callable[[Sequence[pa.Array], BufferList], ArrayEncoding],
) -> Dictionary:
    """Encode dictionary arrays. Null indices refer to a null item, which is appended if the dictionary lacks one.

    `values` encodes the items. Raises UnsupportedFeatureError if there are too many items for the index type.
    """
    arrays = _unify(arrays)
    items = arrays[0].dictionary
    has_nulls = any(array.indices.null_count for array in arrays)
    null_index = 0
    if has_nulls or len(items) == 0:
        if items.null_count:
            null_index = int(np.flatnonzero(np.asarray(items.is_null()))[0])
        else:
            null_index = len(items)
            items = pa.concat_arrays([items, pa.nulls(1, items.type)])
    index_type = arrays[0].type.index_type
    dtype = np.dtype(index_type.to_pandas_dtype())
    if len(items) - 1 > np.iinfo(dtype).max:
        raise UnsupportedFeatureError(
            f"{len(items)} dictionary items, including a null, are too many for {index_type}; use a wider index type",
            feature="dictionary with a null",
        )
    pieces = []
    for array in arrays:
        indices = array.indices
        if indices.null_count:
            indices = indices.fill_null(pa.scalar(null_index, index_type))
        pieces.append(np.frombuffer(indices.buffers()[1], dtype, len(indices), indices.offset * dtype.itemsize))
    index_encoding = Nullable(Flat(8 * dtype.itemsize, buffers.add(pieces)))
    return Dictionary(index_encoding, values([items], buffers), len(items))


def _unify(arrays: Sequence[pa.Array]) -> Sequence[pa.Array]:
    """Convert arrays to a common dictionary."""
    first = arrays[0].dictionary
    if all(array.dictionary.equals(first) for array in arrays[1:]):
        return arrays
    # Arrow cannot unify dictionaries that contain nulls, so decode the values and encode them again.
    data_type = arrays[0].type
    whole = pa.chunked_array([array.cast(data_type.value_type) for array in arrays]).combine_chunks()
    unified = whole.dictionary_encode()
    try:
        indices = unified.indices.cast(data_type.index_type)
    except pa.ArrowInvalid as error:
        raise UnsupportedFeatureError(
            f"{len(unified.dictionary)} distinct dictionary items in one page are too many for {data_type.index_type};"
            " use a wider index type",
            feature="dictionary page",
        ) from error
    return [pa.DictionaryArray.from_arrays(indices, unified.dictionary)]
