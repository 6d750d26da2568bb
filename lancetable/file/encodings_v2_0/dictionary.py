"""Dictionary: indices into items that are stored once in each page. Two uses, told apart by the type of the field.

    dictionary<int8, string>  [aa, null, b]   indices 0 2 1   items aa, b, null     nulls are items
    string                    [aa, null, b]   indices 1 0 2   items aa, b           index 0 is null

Source: protos/encodings_v2_0.proto, Dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import UnsupportedFeatureError
from lancetable.file.column import Decoded
from lancetable.file.container import Page
from lancetable.file.encodings_v2_0.base import ArrayEncoding, BufferList, from_message, to_message
from lancetable.file.encodings_v2_0.binary import encode_binary
from lancetable.file.encodings_v2_0.flat import Flat
from lancetable.file.encodings_v2_0.nullable import Nullable
from lancetable.file.fetch import ReadPlan, Slots, count_slots, gather
from lancetable.file.kernels import varbin
from lancetable.proto import encodings_v2_0_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Dictionary", "encode_dictionary", "encode_strings", "probe_strings"]

MIN_ROWS: Final = 100
MAX_ITEMS: Final = 99  # other readers take indices of 8 bits only, and 0 is null
_PROBE_ROWS: Final = 512


@dataclass(frozen=True, slots=True)
class Dictionary:
    arm: ClassVar[str] = "dictionary"

    indices: ArrayEncoding
    items: ArrayEncoding
    num_items: int

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, gap: int) -> ReadPlan[Decoded]:
        is_dictionary = pa.types.is_dictionary(data_type)
        index_type = data_type.index_type if is_dictionary else pa.uint8()
        value_type = data_type.value_type if is_dictionary else data_type
        if self.num_items == 0:
            raise page.corrupt("a dictionary without items")
        page.check_memory(self.num_items)
        parts = yield from gather(
            [
                self.indices.read(page, index_type, length, slots, gap),
                self.items.read(page, value_type, self.num_items, range(self.num_items), gap),
            ]
        )
        indices, items = parts[0], parts[1].to_array(value_type)
        if indices.validity is not None or not indices.buffers:
            raise page.corrupt("indices of a dictionary that may be null")
        numbers = np.frombuffer(indices.buffers[0], index_type.to_pandas_dtype(), count_slots(slots))
        if is_dictionary:
            return _as_dictionary(page, numbers, items)
        if int(numbers.max()) > len(items):
            raise page.corrupt("an index beyond the items of its dictionary", f"at most {len(items)}", int(numbers.max()))
        _check_size(page, numbers, items)
        chosen = pa.concat_arrays([pa.nulls(1, value_type), items]).take(
            pa.Array.from_buffers(index_type, len(numbers), [None, indices.buffers[0]], 0)
        )
        return Decoded(len(chosen), array=chosen)

    @classmethod
    def from_proto(cls, message: pb.Dictionary) -> Self:
        return cls(from_message(message.indices), from_message(message.items), message.num_dictionary_items)

    def to_proto(self) -> pb.Dictionary:
        return pb.Dictionary(
            indices=to_message(self.indices), items=to_message(self.items), num_dictionary_items=self.num_items
        )


def _as_dictionary(page: Page, numbers: npt.NDArray[Any], items: pa.Array) -> Decoded:
    """Indices and items, where null items became null indices: other readers stumble over nulls in a dictionary."""
    if int(numbers.max()) >= len(items) or (numbers.dtype.kind == "i" and int(numbers.min()) < 0):
        raise page.corrupt("an index outside of its dictionary", f"0 to {len(items) - 1}", int(numbers.max()))
    if items.null_count == 0:
        return Decoded(len(numbers), (pa.py_buffer(numbers),), dictionary=items)
    present = np.asarray(items.is_valid())
    valid = present[numbers]
    kept = int(present.sum())
    if not present[:kept].all():
        # Indices move down past the nulls that are taken out. An index under a null may be anything that exists.
        moved = np.maximum(np.cumsum(present) - 1, 0).astype(numbers.dtype)
        numbers = moved[numbers]
        items = items.drop_null()
    else:
        items = items.slice(0, kept)
        numbers = np.where(valid, numbers, 0).astype(numbers.dtype, copy=False)
    validity = None if valid.all() else varbin.pack_validity(valid)
    return Decoded(len(numbers), (pa.py_buffer(numbers),), validity, dictionary=items)


def _check_size(page: Page, numbers: npt.NDArray[Any], items: pa.Array) -> None:
    """Refuse strings that would expand beyond the limit or beyond what 32-bit offsets can hold."""
    limit = min(page.limits.page_bytes, (1 << 31) - 1)
    lengths = np.concatenate(([0], np.asarray(pc.fill_null(pc.binary_length(items), 0))))
    if int(lengths.max()) * len(numbers) <= limit:
        return
    total = int(np.bincount(numbers, minlength=len(lengths)) @ lengths)
    if total > limit:
        raise page.corrupt("strings that expand too far", f"at most {limit} bytes", total)


# ------------------------------------------------------------------------------------------------------------ encode


def probe_strings(arrays: Sequence[pa.Array]) -> bool:
    """Whether strings may be few enough for a dictionary: some rows at the start, in the middle and at the end."""
    rows = sum(map(len, arrays))
    if rows < MIN_ROWS:
        return False
    if rows <= 3 * _PROBE_ROWS:
        return True
    middle = arrays[len(arrays) // 2]
    samples = [
        arrays[0].slice(0, _PROBE_ROWS),
        middle.slice(len(middle) // 2, _PROBE_ROWS),
        arrays[-1].slice(max(len(arrays[-1]) - _PROBE_ROWS, 0)),
    ]
    return len(pc.unique(pa.chunked_array(samples)).drop_null()) <= MAX_ITEMS


def encode_strings(arrays: Sequence[pa.Array], buffers: BufferList) -> Dictionary | None:
    """Strings as indices of 8 bits, 0 for null; None if there are too many different ones."""
    coded = pa.chunked_array(arrays).dictionary_encode().unify_dictionaries()
    items = coded.chunk(coded.num_chunks - 1).dictionary
    if len(items) > MAX_ITEMS:
        return None
    pieces = []
    for chunk in coded.chunks:
        indices = chunk.indices
        numbers = np.asarray(indices.fill_null(-1)) if indices.null_count else np.asarray(indices)
        pieces.append((numbers + 1).astype(np.uint8))
    if len(items) == 0:
        items = pa.nulls(1, items.type)
    encoded = Nullable(Flat(8, buffers.add(pieces)))
    return Dictionary(encoded, encode_binary([items], buffers), len(items))


def encode_dictionary(
    arrays: Sequence[pa.Array],
    buffers: BufferList,
    values: Callable[[Sequence[pa.Array], BufferList], ArrayEncoding],
) -> Dictionary:
    """Dictionary arrays as they are. Nulls point to a null item, which is appended where there is none.

    Raises UnsupportedFeatureError if the index type cannot count the items.
    """
    arrays = _unified(arrays)
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
            f"{len(items)} dictionary items, one of them null, are more than {index_type} can count",
            feature="dictionary with a null",
        )
    pieces = []
    for array in arrays:
        indices = array.indices
        if indices.null_count:
            indices = indices.fill_null(pa.scalar(null_index, index_type))
        pieces.append(np.frombuffer(indices.buffers()[1], dtype, len(indices), indices.offset * dtype.itemsize))
    encoded = Nullable(Flat(8 * dtype.itemsize, buffers.add(pieces)))
    return Dictionary(encoded, values([items], buffers), len(items))


def _unified(arrays: Sequence[pa.Array]) -> Sequence[pa.Array]:
    """Arrays with one dictionary for all of them."""
    first = arrays[0].dictionary
    if all(array.dictionary.equals(first) for array in arrays[1:]):
        return arrays
    # Arrow does not merge dictionaries that hold nulls; as values they can be encoded anew.
    data_type = arrays[0].type
    whole = pa.chunked_array([array.cast(data_type.value_type) for array in arrays]).combine_chunks()
    coded = whole.dictionary_encode()
    try:
        indices = coded.indices.cast(data_type.index_type)
    except pa.ArrowInvalid as error:
        raise UnsupportedFeatureError(
            f"{len(coded.dictionary)} different dictionary items in one page are more than {data_type.index_type} can"
            " count",
            feature="dictionary page",
        ) from error
    return [pa.DictionaryArray.from_arrays(indices, coded.dictionary)]
