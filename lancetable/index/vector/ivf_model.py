"""Partitions of a vector index (IVF): their centroids, and their rows in a file. Source: protos/index.proto, IVF.

The model of `index.idx` has the centroids, and the rows of the graphs if there are any. The model of `auxiliary.idx`
has the rows of the codes, and no centroids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.format.protobuf_conversion import parse_message
from lancetable.index.vector.tensors import array_of_tensor, tensor_of_array
from lancetable.proto import index_pb2

if TYPE_CHECKING:
    from typing_extensions import Self

_FLOAT_KINDS = "fu"
_MAX_ROWS = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class IvfModel:
    """Partitions of the rows of one file.

    Attributes
    ----------
    offsets, lengths
        First row (partitions,) and number of rows (partitions,) of each partition, int64.
    centroids
        (partitions, dim), in the type of the vectors; None in a file of codes.
    loss
        Sum of the distances of the training vectors to their centroids, if it was recorded.
    """

    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    centroids: npt.NDArray[Any] | None = None
    loss: float | None = None

    @classmethod
    def of_lengths(cls, lengths: npt.NDArray[Any], centroids: npt.NDArray[Any] | None = None) -> Self:
        """Return the model of partitions that are stored one after the other."""
        lengths = lengths.astype(np.int64)
        return cls(np.cumsum(lengths) - lengths, lengths, centroids)

    @property
    def num_partitions(self) -> int:
        """Number of partitions."""
        return len(self.offsets)

    @property
    def num_rows(self) -> int:
        """Number of rows of all partitions."""
        return int(self.lengths.sum())

    def rows(self, partition: int) -> range:
        """Return the rows of a partition in the file."""
        start = int(self.offsets[partition])
        return range(start, start + int(self.lengths[partition]))

    @classmethod
    def parse(cls, data: memoryview | bytes, num_rows: int | None, path: str) -> Self:
        """Parse the model of a file with `num_rows` rows; with None, it describes no rows of the file.

        Raises CorruptFileError, with `path`, if it is damaged.
        """
        message = parse_message(index_pb2.IVF, data, path)
        offsets, lengths = np.array(message.offsets, np.uint64), np.array(message.lengths, np.uint64)
        if len(offsets) != len(lengths):
            raise CorruptFileError("wrong number of lengths of partitions", len(offsets), len(lengths), path=path)
        if num_rows is None:
            offsets, lengths, num_rows = np.zeros_like(offsets), np.zeros_like(lengths), 0
        if (offsets > _MAX_ROWS).any() or (offsets + lengths > num_rows).any():
            raise CorruptFileError("a partition of a vector index ends after the last row", num_rows, path=path)
        if int(lengths.sum()) != num_rows:
            raise CorruptFileError("wrong number of rows of all partitions", num_rows, int(lengths.sum()), path=path)
        centroids = _centroids(message, len(offsets), path)
        loss = message.loss if message.HasField("loss") else None
        return cls(offsets.astype(np.int64), lengths.astype(np.int64), centroids, loss)

    def serialize(self) -> bytes:
        """Return the message as bytes."""
        message = index_pb2.IVF(offsets=self.offsets.tolist(), lengths=self.lengths.tolist())
        if self.centroids is not None:
            message.centroids_tensor.CopyFrom(tensor_of_array(self.centroids))
        if self.loss is not None:
            message.loss = self.loss
        return message.SerializeToString()


def _centroids(message: index_pb2.IVF, num_partitions: int, path: str) -> npt.NDArray[Any] | None:
    if message.HasField("centroids_tensor"):
        centroids = array_of_tensor(message.centroids_tensor, path)
    elif message.centroids and num_partitions:
        centroids = np.array(message.centroids, np.float32)
        if len(centroids) % num_partitions:
            raise CorruptFileError("wrong number of values of centroids", path=path)
        centroids = centroids.reshape(num_partitions, -1)
    else:
        return None
    if centroids.ndim != 2 or len(centroids) != num_partitions or centroids.dtype.kind not in _FLOAT_KINDS:
        what = "wrong shape of the centroids of a vector index"
        raise CorruptFileError(what, (num_partitions, "dim"), (*centroids.shape, centroids.dtype), path=path)
    return centroids
