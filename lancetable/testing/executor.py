"""Executor without threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class InlineExecutor(Executor):
    """Executor that runs work in `submit`, so that the order of calls is reproducible."""

    def __init__(self, max_workers: int | None = None) -> None:
        del max_workers

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """Run the work. An exception is stored in the future; other subclasses of BaseException are raised."""
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future
