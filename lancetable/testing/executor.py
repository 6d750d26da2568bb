"""Executor without threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["InlineExecutor"]


class InlineExecutor:
    """Executor that runs work in `submit`, so that the order of calls is reproducible."""

    def __init__(self, max_workers: int | None = None) -> None:
        del max_workers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing: all work is finished."""

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run the work. An exception is stored in the future; other subclasses of BaseException are raised."""
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future
