"""Calls of functions of the newest version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lancetable.dataset import LanceDataset
from lancetable.spark.options import SourceOptions
from lancetable.spark.pin import pinned
from lancetable.spark.runner import Json

__all__ = ["Call"]


@dataclass(frozen=True)
class Call:
    """A function that is called with the newest version."""

    options: SourceOptions
    function: Callable[..., Any]
    arguments: Mapping[str, Any]

    def __call__(self) -> Json:
        dataset = LanceDataset.from_version(pinned(self.options).open())
        value = self.function(dataset, **self.arguments)
        return {"value": asdict(value) if hasattr(value, "__dataclass_fields__") else value}
