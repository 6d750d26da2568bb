"""Quantizers of vector indexes: how the vectors of partitions are stored, and distances to them.

    FLAT    the vectors                                      flat_quantizer.py
    PQ      number of the nearest vector of a codebook,      product_quantizer.py
            for each sub-vector
    SQ      each number scaled to 8 bits                     scalar_quantizer.py

An index with the metric cosine contains normalized vectors, so vectors and queries are normalized first. A quantizer
with `uses_residuals` encodes the differences between vectors and the centroid of their partition.

`auxiliary.idx` has the settings of its quantizer in `storage_metadata`: a JSON list with one JSON text.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.kernels.vector_distances import Scan
from lancetable.index.distances import Metric, Vectors, widen

if TYPE_CHECKING:
    from lancetable.index.index_files import IndexFileReader

Codes: TypeAlias = npt.NDArray[Any]
Prepared: TypeAlias = npt.NDArray[Any]

METADATA_KEY = "storage_metadata"
_MAX_DIM = 1 << 20


class Quantizer(ABC):
    """Quantizer of one segment. Immutable and thread-safe.

    Parameters
    ----------
    metric
        Metric of the index.
    dim
        Dimension of the vectors.
    """

    kind: ClassVar[str]
    """Name in the type of an index, such as "PQ"."""
    column: ClassVar[str]
    """Column of the codes in `auxiliary.idx`."""

    def __init__(self, metric: Metric, dim: int) -> None:
        self.metric, self.dim = metric, dim

    @property
    def uses_residuals(self) -> bool:
        """True if codes encode differences to the centroid of their partition."""
        return False

    @property
    @abstractmethod
    def code_type(self) -> pa.DataType:
        """Type of the column of codes."""

    @property
    def code_bytes(self) -> int:
        """Size of the code of a vector in bytes."""
        number_bits: int = self.code_type.value_type.bit_width
        size: int = self.code_type.list_size * number_bits // 8
        return size

    @property
    def code_field(self) -> pa.Field:
        """The column of codes as pylance writes it."""
        return pa.field(self.column, self.code_type)

    @abstractmethod
    def settings(self, buffer: int | None = None) -> Mapping[str, Any]:
        """Return the settings for `storage_metadata`; `buffer` is the number of the global buffer with `buffer()`."""

    def buffer(self) -> bytes | None:
        """Return the content of the global buffer that the settings refer to, None if there is none."""
        return None

    @abstractmethod
    def encode(self, vectors: Vectors) -> Codes:
        """Return the codes (n, width) of vectors, which are normalized or residuals where the index requires it."""

    def has_codes_of(self, other: Quantizer) -> bool:
        """Return whether the codes of another quantizer have the same meaning."""
        mine, others = dict(self.settings(0)), dict(other.settings(0))
        mine.pop("transposed", None)
        others.pop("transposed", None)
        return type(self) is type(other) and mine == others and self.buffer() == other.buffer()

    @abstractmethod
    def decode(self, codes: Codes) -> Vectors:
        """Return the vectors (n, dim) that codes (n, width) of `encode` represent."""

    def to_stored(self, codes: Codes) -> Codes:
        """Return the rows (n, width) of one partition in the layout of the file, from codes of `encode`."""
        return codes

    def of_prepared(self, codes: Codes) -> Codes:
        """Return codes (n, width) as `encode` returns them, from codes of `of_stored`."""
        return codes

    @abstractmethod
    def of_stored(self, stored: Codes) -> Codes:
        """Return the codes of one partition for `scan` from its rows (n, width) of the file."""

    @abstractmethod
    def prepare(self, queries: Vectors) -> Prepared:
        """Return what `scan` needs for queries (n, dim), which are normalized or residuals as the vectors are."""

    @abstractmethod
    def scan(self, prepared: Prepared, codes: Codes) -> Scan:
        """Return the distances of queries to the codes of a partition, not yet computed."""

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory."""
        return 256


def metadata_text(quantizer: Quantizer, buffer: int | None = None) -> str:
    """Return the entry `storage_metadata` of a file. `buffer` is the number of the buffer of the quantizer."""
    return json.dumps([json.dumps(quantizer.settings(buffer), separators=(",", ":"))], separators=(",", ":"))


def read_settings(file: IndexFileReader) -> Mapping[str, Any]:
    """Return the settings in `storage_metadata`. Raises CorruptFileError if they are damaged."""
    text = file.text(METADATA_KEY)
    try:
        (inner,) = json.loads(text or "")
        settings = json.loads(inner)
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptFileError(f"malformed entry {METADATA_KEY!r} of a vector index", path=file.path) from error
    if not isinstance(settings, dict):
        raise CorruptFileError(f"malformed entry {METADATA_KEY!r} of a vector index", path=file.path)
    return settings


def integer(settings: Mapping[str, Any], name: str, least: int, most: int, path: str) -> int:
    """Return a number of the settings. Raises CorruptFileError, with `path`, if it is missing or out of range."""
    value = settings.get(name)
    if type(value) is not int or not least <= value <= most:
        raise CorruptFileError(f"setting {name!r} of a vector index", f"{least} to {most}", repr(value), path=path)
    return value


def dimension(settings: Mapping[str, Any], name: str, path: str) -> int:
    """Return a dimension. Raises CorruptFileError, with `path`, if it is missing or out of range."""
    return integer(settings, name, 1, _MAX_DIM, path)


def normalized(vectors: Vectors) -> Vectors:
    """Return vectors (n, dim) or (dim,) divided by their length, in their type; NaN for vectors of length 0."""
    values = widened(vectors)
    with np.errstate(all="ignore"):
        lengths = np.sqrt(np.einsum("...i,...i->...", values, values, dtype=np.float64))
        result: Vectors = (values / lengths[..., None]).astype(vectors.dtype)
    return result


def widened(vectors: Vectors) -> Vectors:
    """Return float16 as float32, other numbers unchanged."""
    return widen(np.ascontiguousarray(vectors)) if vectors.dtype == np.float16 else vectors


def aligned(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array that is contiguous and aligned."""
    return np.require(values, requirements=["C", "A"])
