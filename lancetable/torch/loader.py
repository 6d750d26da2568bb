"""A `DataLoader` that can be saved and resumed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch.utils.data

from lancetable.errors import InvalidInputError, InvalidOperationError
from lancetable.torch.iterable import LanceDataset


class LanceDataLoader(torch.utils.data.DataLoader):
    """`DataLoader` of a `LanceDataset` whose position can be saved with a checkpoint and restored exactly.

    The position counts the batches that this loader has yielded, not those that workers have prepared.

    Parameters
    ----------
    dataset
        The dataset, which makes the batches.
    num_workers
        Number of worker processes; 0 reads in this process. They may be forked or spawned.
    kwargs
        Further arguments of `torch.utils.data.DataLoader`.

    Examples
    --------
    >>> from lancetable.torch.data import LanceDataLoader, LanceDataset
    >>> loader = LanceDataLoader(LanceDataset("flights.lance", batch_size=3, columns=["id"]))
    >>> batches = iter(loader)
    >>> next(batches)
    tensor([1, 2, 3])
    >>> state = loader.state_dict()

    In another process:

    >>> loader = LanceDataLoader(LanceDataset("flights.lance", batch_size=3, columns=["id"]))
    >>> loader.load_state_dict(state)
    >>> list(loader)
    [tensor([4, 5, 6]), tensor([7, 8])]
    """

    dataset: LanceDataset

    def __init__(self, dataset: LanceDataset, num_workers: int = 0, **kwargs: Any) -> None:
        if not isinstance(dataset, LanceDataset):
            raise TypeError(f"expected lancetable.torch.data.LanceDataset, got {type(dataset).__name__}")
        super().__init__(dataset, batch_size=None, num_workers=num_workers, **kwargs)
        self._num_batches = 0
        self._epoch = dataset.epoch
        self._is_started = False

    def __len__(self) -> int:
        """Return the number of batches of this rank in the current epoch; `DataLoader` would expect it in each epoch.

        Raises
        ------
        TypeError
            If the dataset has a sampler.
        """
        return len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        batches = super().__iter__()  # workers get a copy of the dataset, with the position that was loaded
        position = self.dataset.state_dict() if self.num_workers == 0 else {"num_batches": self.dataset.take_position()}
        self._num_batches, self._epoch = position["num_batches"], self.dataset.epoch
        self._is_started = True
        return self._counted(batches)

    def _counted(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            self._num_batches += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batches that were yielded, for `torch.save` or JSON.

        Raises
        ------
        InvalidOperationError
            If workers return batches in no fixed order, because of the argument `in_order=False`.
        """
        if self.num_workers > 1 and not getattr(self, "in_order", True):
            raise InvalidOperationError("the position of a loader with in_order=False is not one number of batches")
        state = self.dataset.state_dict()
        is_current = state["epoch"] == self._epoch
        return {**state, "num_batches": self._num_batches if is_current else 0, "num_workers": max(1, self.num_workers)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after a position, as `LanceDataset.load_state_dict` does.

        Parameters
        ----------
        state_dict
            A result of `state_dict`.

        Raises
        ------
        InvalidInputError
            If the state was saved with another number of workers or other arguments.
        InvalidOperationError
            If persistent workers have been started.
        VersionNotFoundError
            If the version does not exist any more.
        """
        if self.persistent_workers and self._is_started:
            raise InvalidOperationError("persistent workers have been started; load the state into a new loader")
        num_workers = max(1, self.num_workers)
        if state_dict["num_workers"] != num_workers:
            raise InvalidInputError(
                f"the state was saved with num_workers={state_dict['num_workers']}, this is {num_workers}"
            )
        self.dataset.load_state_dict(state_dict)
        self._num_batches, self._epoch = state_dict["num_batches"], state_dict["epoch"]
