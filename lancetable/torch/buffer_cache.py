"""Tables in local Arrow files, for rows that every epoch reads again."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable

import pyarrow as pa


class BufferCache:
    """Arrow files in a directory of their own, which is removed with this object by the process that created it.

    `parent` is the directory to create it in, or True for that of temporary files. Several processes may use the cache.
    """

    def __init__(self, parent: str | bool) -> None:
        if not isinstance(parent, bool):
            os.makedirs(parent, exist_ok=True)
        self.directory = tempfile.mkdtemp(prefix="lancetable-", dir=None if isinstance(parent, bool) else parent)
        weakref.finalize(self, _remove, self.directory, os.getpid())

    def get(self, name: str, read: Callable[[], pa.Table]) -> pa.Table:
        """Return the table of a name, which `read` returns for the first time."""
        path = os.path.join(self.directory, name)
        if not os.path.exists(path):
            table, temporary = read(), f"{path}.{os.getpid()}"
            with pa.ipc.new_file(temporary, table.schema) as writer:
                writer.write_table(table)
            os.replace(temporary, path)
            return table
        with pa.memory_map(path) as source:
            return pa.ipc.open_file(source).read_all()


def _remove(directory: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker has a copy of this object
        shutil.rmtree(directory, ignore_errors=True)
