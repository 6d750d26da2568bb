"""Temporary files for rows that exceed a memory budget, as Arrow IPC streams."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

import pyarrow as pa

from lancetable.errors import InvalidInputError, LanceError, StoreError


def memory_budget(variable: str, default_bytes: int) -> int:
    """Return the memory budget set by an environment variable, or the default.

    Raises InvalidInputError if the variable is not a positive number.
    """
    value = os.environ.get(variable)
    if not value:
        return default_bytes
    if not value.isdecimal() or int(value) < 1:
        raise InvalidInputError(f"{variable} must be a positive number of bytes, not {value!r}")
    return int(value)


class SpillDirectory:
    """Directory of temporary files: created with the first file, removed with all files by `remove`.

    Parameters
    ----------
    variable
        Environment variable of the memory budget, which errors mention.
    """

    def __init__(self, variable: str) -> None:
        self._variable = variable
        self._path: str | None = None

    @property
    def exists(self) -> bool:
        """True if the directory was created."""
        return self._path is not None

    def file(self, name: str) -> str:
        """Return the path of a file; create the directory if necessary. Raises StoreError if that fails."""
        if self._path is None:
            with self.reporting_errors():
                self._path = tempfile.mkdtemp(prefix="lancetable-spill-")
        return os.path.join(self._path or "", name)

    def write(self, name: str, batches: Iterable[pa.RecordBatch]) -> None:
        """Write batches, at least one, to a file. Raises StoreError if that fails."""
        path, rest = self.file(name), iter(batches)
        first = next(rest)
        with self.reporting_errors(), pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, first.schema) as writer:
            for batch in chain((first,), rest):
                writer.write_batch(batch)

    def read(self, name: str) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a file. Raises StoreError if that fails."""
        with self.reporting_errors(), pa.OSFile(self.file(name)) as file, pa.ipc.open_stream(file) as reader:
            yield from reader

    def delete(self, names: Iterable[str]) -> None:
        """Delete files."""
        with self.reporting_errors():
            for name in names:
                os.remove(self.file(name))

    def remove(self) -> None:
        """Remove the directory and its files."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)

    @contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Convert an OSError in the `with` block to StoreError."""
        try:
            yield
        except LanceError:
            raise
        except OSError as error:
            where = self._path or tempfile.gettempdir()
            raise StoreError(
                f"{where}: spilling rows that exceed the memory budget failed: {error}. Set TMPDIR to a "
                f"directory with more space, or increase {self._variable}",
                path=where,
                errno=error.errno,
            ) from error
