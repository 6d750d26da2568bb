"""A map-style dataset of PyTorch: rows by number."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch.utils.data

from lancetable.argument_validation import check_count
from lancetable.dataset import LanceDataset
from lancetable.dataset import dataset as open_dataset
from lancetable.errors import OutOfRangeError
from lancetable.torch.row_selection import RowSelection
from lancetable.types import Uri


class SafeLanceDataset(torch.utils.data.Dataset):
    """Map-style dataset of the rows of a table, each a dict of Python values.

    It reads the version that is current when it is created, also in workers. All rows of a batch are read together.

    Parameters
    ----------
    uri
        Path or URI of the table.
    dataset_options
        Arguments of `lancetable.dataset`.

    Examples
    --------
    >>> from lancetable.torch.data import SafeLanceDataset
    >>> rows = SafeLanceDataset("airlines.lance")
    >>> len(rows), rows[2]
    (4, {'code': 'DL', 'airline': 'Delta'})
    """

    def __init__(self, uri: Uri, *, dataset_options: dict[str, Any] | None = None) -> None:
        self.uri = uri
        self._dataset: LanceDataset = open_dataset(uri, **(dataset_options or {}))
        self._selection = RowSelection(self._dataset, None, num_samples=0, seed=0)

    def __len__(self) -> int:
        return self._selection.num_rows

    def __getitem__(self, idx: int) -> dict[str, Any]:
        return self.__getitems__([idx])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows with these numbers; negative ones count from the end.

        Raises
        ------
        OutOfRangeError
            If a number is out of range; it is an IndexError.
        """
        num_rows = len(self)
        numbers = [index + num_rows if index < 0 else index for index in indices]
        for index, number in zip(indices, numbers, strict=True):
            if not 0 <= number < num_rows:
                raise OutOfRangeError(f"row {index} is out of range: there are {num_rows} rows")
        positions = self._selection.positions(np.array(list(map(operator.index, numbers)), np.int64))
        rows: list[dict[str, Any]] = self._dataset.take(positions).to_pylist()
        return rows


def get_safe_loader(
    dataset: SafeLanceDataset, batch_size: int = 32, num_workers: int = 4, **kwargs: Any
) -> torch.utils.data.DataLoader:
    """Return a `DataLoader` whose workers are spawned and persistent.

    Parameters
    ----------
    dataset
        The dataset.
    batch_size
        Rows of a batch.
    num_workers
        Number of worker processes; 0 reads in this process.
    kwargs
        Further arguments of `torch.utils.data.DataLoader`, which take precedence.
    """
    if check_count("num_workers", num_workers):
        kwargs = {"multiprocessing_context": "spawn", "persistent_workers": True, **kwargs}
    return torch.utils.data.DataLoader(dataset, batch_size=batch_size, num_workers=num_workers, **kwargs)
