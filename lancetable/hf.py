"""Data sets of Hugging Face `datasets`: written to tables, read from tables, and their images decoded.

    lancetable.write_dataset(datasets.load_dataset("cifar10", split="train"), "/data/cifar10.lance")
    lancetable.hf.to_iterable_dataset("/data/cifar10.lance", filter="label < 5")

A table keeps the features in its schema. Converting to a data set requires `pip install 'lancetable[huggingface]'`.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lancetable.dataset import LanceDataset
from lancetable.dataset import dataset as open_dataset
from lancetable.errors import InvalidOperationError, MissingPackageError

if TYPE_CHECKING:
    import datasets
    from PIL.Image import Image

    from lancetable.types import Columns, Filter, Uri

__all__ = ["HuggingFaceConverter", "to_dataset", "to_iterable_dataset"]

_METADATA_KEY = b"huggingface"
_OPTIONS_OF_WHOLE_TABLES = {"fragments", "full_text_query", "limit", "nearest", "offset"}


class HuggingFaceConverter:
    """Decoder of the images of a data set.

    Parameters
    ----------
    ds_info
        Description of the data set with its `features`, as in the metadata `huggingface` of an Arrow schema.
    """

    def __init__(self, ds_info: dict[str, Any]) -> None:
        features = ds_info.get("features") or {}
        self.images = frozenset(name for name, feature in features.items() if _is_image(feature))

    def to_pytorch(self, col: str, array: pa.Array) -> list[Image | None] | None:
        """Return the images of a column, or None for a column without images, which becomes a tensor.

        Parameters
        ----------
        col
            Name of the column.
        array
            Its values.

        Raises
        ------
        MissingPackageError
            If Pillow is not installed.
        """
        if col not in self.images:
            return None
        try:
            import PIL.Image
        except ImportError as error:
            raise MissingPackageError("images require Pillow: pip install pillow", name="PIL") from error
        return [
            None if value is None else PIL.Image.open(io.BytesIO(value["bytes"]) if value["bytes"] else value["path"])
            for value in array.to_pylist()
        ]


def converter_of(schema: pa.Schema) -> HuggingFaceConverter | None:
    """Return the converter for a table that was a data set with images, or None.

    Raises
    ------
    InvalidOperationError
        If the schema metadata of the data set is malformed.
    """
    text = (schema.metadata or {}).get(_METADATA_KEY)
    if text is None:
        return None
    try:
        converter = HuggingFaceConverter(json.loads(text).get("info") or {})
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidOperationError(
            "the schema metadata 'huggingface' does not describe a data set; replace it with update_schema_metadata"
        ) from error
    return converter if converter.images else None


def to_dataset(
    dataset: LanceDataset | Uri, *, columns: Columns | None = None, filter: Filter | None = None
) -> datasets.Dataset:
    """Read rows into a `datasets.Dataset` in memory, with the features that the table was written with.

    Parameters
    ----------
    dataset
        A table, or its path or URI.
    columns
        Column names, or `{name: SQL expression}`. All columns by default.
    filter
        Predicate of the rows.

    Raises
    ------
    MissingPackageError
        If `datasets` is not installed.
    """
    package = _import_datasets()
    table = _open(dataset).to_table(columns=columns, filter=filter)
    return package.Dataset(package.table.InMemoryTable(table))


def to_iterable_dataset(
    dataset: LanceDataset | Uri, *, columns: Columns | None = None, filter: Filter | None = None
) -> datasets.IterableDataset:
    """Return a `datasets.IterableDataset` that streams rows. Its shards are the fragments of the table.

    Parameters
    ----------
    dataset
        A table, or its path or URI. The current version is read, also later and in other processes.
    columns
        Column names, or `{name: SQL expression}`. All columns by default.
    filter
        Predicate of the rows.

    Raises
    ------
    MissingPackageError
        If `datasets` is not installed.
    InvalidOperationError
        If the default scan options of the dataset, such as `limit`, select rows of the table as a whole.

    Examples
    --------
    >>> from lancetable.hf import to_iterable_dataset
    >>> for row in to_iterable_dataset(ds, columns=["id", "dest"], filter="distance > 2000"):
    ...     print(row)
    {'id': 7, 'dest': 'LAX'}
    {'id': 8, 'dest': 'SFO'}
    """
    package = _import_datasets()
    table = _open(dataset)
    unsupported = sorted(table.default_scan_options.keys() & _OPTIONS_OF_WHOLE_TABLES)
    if unsupported:
        raise InvalidOperationError(
            f"fragments are read one by one, without the default scan options {', '.join(unsupported)}; use to_dataset"
        )
    schema = table.scanner(columns=columns).projected_schema
    features = package.Features.from_arrow_schema(schema)
    shards = {
        "fragments": [fragment.fragment_id for fragment in table.get_fragments()],
        "dataset": pickle.dumps(table),  # `datasets` pickles arguments in its own way, by value
        "columns": tuple(columns) if isinstance(columns, list) else columns,  # a list would be divided among shards
        "filter": filter,
    }
    return package.IterableDataset.from_generator(_rows_of_fragments, features=features, gen_kwargs=shards)


def _rows_of_fragments(
    fragments: Sequence[int], dataset: bytes, columns: Columns | None, filter: Filter | None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of fragments as dicts."""
    table = pickle.loads(dataset)
    for number in fragments:
        for batch in table.get_fragment(number).to_batches(columns=columns, filter=filter):
            yield from batch.to_pylist()


def _open(dataset: LanceDataset | Uri) -> LanceDataset:
    return dataset if isinstance(dataset, LanceDataset) else open_dataset(dataset)


def _is_image(feature: object) -> bool:
    return isinstance(feature, Mapping) and feature.get("_type") == "Image"


def _import_datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingPackageError(
            "data sets of Hugging Face require the package datasets: pip install 'lancetable[huggingface]'",
            name="datasets",
        ) from error
    return datasets
