"""Models of vector indexes, which can be stored in files, and the partitions of an index."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lancetable.errors import CorruptFileError, InvalidInputError, OutOfRangeError

if TYPE_CHECKING:
    from lancetable.dataset import LanceDataset


@dataclass(eq=False)
class IvfModel:
    """Partitions of a vector index.

    Parameters
    ----------
    centroids
        Array of fixed-size lists: the centroid of each partition, in the type of the vectors.
    distance_type
        Metric of the index: "l2", "cosine", "dot" or "hamming". Centroids of an index with the metric cosine are those
        of normalized vectors.
    """

    centroids: pa.FixedSizeListArray
    distance_type: str

    @property
    def num_partitions(self) -> int:
        """The number of partitions."""
        return len(self.centroids)

    def save(self, uri: str, *, storage_options: dict[str, str] | None = None) -> None:
        """Write the model to a file that `load` and pylance can read. Raises the errors of `LanceFileWriter`."""
        _write(uri, "centroids", self.centroids, {"distance_type": self.distance_type}, storage_options)

    @classmethod
    def load(cls, uri: str, *, storage_options: dict[str, str] | None = None) -> IvfModel:
        """Read a model from a file.

        Raises
        ------
        CorruptFileError
            If the file does not contain a model.
        """
        centroids, metadata = _read(uri, "centroids", ["distance_type"], storage_options)
        return cls(centroids, metadata["distance_type"])


@dataclass(eq=False)
class PqModel:
    """Codebook of product quantization.

    Parameters
    ----------
    num_subvectors
        Number of sub-vectors into which vectors are divided.
    codebook
        Array of 2^num_bits fixed-size lists of the dimension of the vectors. Its values are those of an array of shape
        (num_subvectors, 2^num_bits, dimension / num_subvectors).
    num_bits
        Bits of the code of a sub-vector, 8 or 4.
    """

    num_subvectors: int
    codebook: pa.FixedSizeListArray
    _: KW_ONLY
    num_bits: int = 8

    @property
    def dimension(self) -> int:
        """The dimension of the vectors."""
        return int(self.codebook.type.list_size)

    def save(self, uri: str, *, storage_options: dict[str, str] | None = None) -> None:
        """Write the model to a file that `load` and pylance can read. Raises the errors of `LanceFileWriter`."""
        metadata = {"num_subvectors": str(self.num_subvectors), "num_bits": str(self.num_bits)}
        _write(uri, "codebook", self.codebook, metadata, storage_options)

    @classmethod
    def load(cls, uri: str, *, storage_options: dict[str, str] | None = None) -> PqModel:
        """Read a model from a file.

        Raises
        ------
        CorruptFileError
            If the file does not contain a model.
        """
        codebook, metadata = _read(uri, "codebook", ["num_subvectors"], storage_options)
        numbers = [metadata["num_subvectors"], metadata.get("num_bits", "8")]
        if not all(number.isdecimal() and len(number) < 10 for number in numbers):
            raise CorruptFileError("invalid numbers of a codebook", found=numbers, path=uri)
        return cls(int(numbers[0]), codebook, num_bits=int(numbers[1]))


def _write(
    uri: str, column: str, values: pa.Array, metadata: dict[str, str], storage_options: dict[str, str] | None
) -> None:
    from lancetable.file import LanceFileWriter

    schema = pa.schema([pa.field(column, values.type)], metadata)
    with LanceFileWriter(uri, schema, storage_options=storage_options) as writer:
        writer.write_batch(pa.table([values], schema=schema))


def _read(
    uri: str, column: str, keys: list[str], storage_options: dict[str, str] | None
) -> tuple[pa.FixedSizeListArray, dict[str, str]]:
    """Return the column of a model, and the metadata of the file.

    Raises
    ------
    CorruptFileError
        If they are missing.
    """
    from lancetable.file import LanceFileReader

    table = LanceFileReader(uri, storage_options=storage_options).read_all().to_table()
    metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    if column not in table.schema.names or not pa.types.is_fixed_size_list(table.schema.field(column).type):
        raise CorruptFileError(f"the file has no column {column!r} of vectors, so it is no model", path=uri)
    missing = [key for key in keys if key not in metadata]
    if missing:
        raise CorruptFileError(f"the file has no metadata {missing[0]!r}, so it is no model", path=uri)
    return table.column(column).combine_chunks(), metadata


class VectorIndexReader:
    """Rows and codes of the partitions of a vector index.

    Parameters
    ----------
    dataset
        The dataset.
    index_name
        Name of the index.

    Raises
    ------
    IndexNotFoundError
        If the index does not exist.
    InvalidInputError
        If it is not a vector index.

    Examples
    --------
    >>> from lancetable.dataset import VectorIndexReader
    >>> texts = lancetable.dataset("texts.lance")
    >>> texts = texts.create_index("embedding", "IVF_FLAT", num_partitions=4)
    >>> reader = VectorIndexReader(texts, "embedding_idx")
    >>> sum(reader.read_partition(number).num_rows for number in range(reader.num_partitions()))
    600
    """

    def __init__(self, dataset: LanceDataset, index_name: str) -> None:
        self.dataset, self.index_name = dataset, index_name
        self.stats: dict[str, Any] = dataset.stats.index_stats(index_name)
        if "num_partitions" not in self.stats["indices"][0]:
            raise InvalidInputError(f"Index {index_name} is not vector index: its type is {self.stats['index_type']}")

    def num_partitions(self) -> int:
        """Return the number of partitions of the first segment."""
        return int(self.stats["indices"][0]["num_partitions"])

    def read_partition(self, partition_id: int, *, with_vector: bool = False) -> pa.Table:
        """Return the rows of a partition in all segments, as they are stored: rows that were deleted are included.

        Parameters
        ----------
        partition_id
            Number of the partition.
        with_vector
            Include the column of the codes: `flat` for vectors, `__pq_code` or `__sq_code`.

        Raises
        ------
        OutOfRangeError
            If there is no such partition. It is an IndexError.
        UnsupportedFeatureError
            If the type of the index is not supported.
        """
        from lancetable.ops.index.statistics import read_partition

        if not 0 <= partition_id < self.num_partitions():
            raise OutOfRangeError(
                f"Partition id {partition_id} is out of range, expected 0 <= partition_id < {self.num_partitions()}"
            )
        table = read_partition(self.dataset.table_version, self.index_name, partition_id)
        return table if with_vector else table.select([0])
