"""A table at one version, as a small value that travels to other processes: what all parts of one job look at."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from lancetable.errors import VersionNotFoundError
from lancetable.table.version import open_version

if TYPE_CHECKING:
    from lancetable.spark.options import SourceOptions
    from lancetable.table.version import TableVersion

_KEPT = 8
_opened: OrderedDict[Pin, TableVersion] = OrderedDict()
_lock = Lock()


@dataclass(frozen=True)
class Pin:
    """A tag may move, and may name a version of a branch; this does not. `mark` tells the version from one of the same
    number in a table that was made anew at the address."""

    uri: str
    branch: str | None
    version: int
    storage_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    mark: str = ""

    @classmethod
    def of(cls, version: TableVersion) -> Pin:
        options = tuple(sorted((version.storage_options or {}).items()))
        return cls(version.uri, version.branch, version.version, options, mark_of(version))

    @property
    def options(self) -> dict[str, str] | None:
        return dict(self.storage_options) or None

    def open(self) -> TableVersion:
        """The table at this version. A process keeps the last few, with what it has parsed of their files.

        Raises VersionNotFoundError, also where the table was made anew meanwhile.
        """
        with _lock:
            found = _opened.pop(self, None)
        if found is None:
            ref = self.version if self.branch is None else (self.branch, self.version)
            found = open_version(self.uri, ref, storage_options=self.options)
            if self.mark and mark_of(found) != self.mark:
                raise VersionNotFoundError(
                    f"version {self.version} of {self.uri} is not the one of the plan: the table was made anew",
                    version=self.version,
                )
        with _lock:
            _opened[self] = found
            while len(_opened) > _KEPT:
                _opened.popitem(last=False)
        return found


def mark_of(version: TableVersion) -> str:
    """What no other commit has: the name of its transaction file, or else its time."""
    return version.manifest.transaction_file or str(version.manifest.timestamp_ns)


def pinned(options: SourceOptions) -> Pin:
    """The version that the options name, the newest one if they name none.

    Raises DatasetNotFoundError, VersionNotFoundError, RefNotFoundError.
    """
    from lancetable.dataset import dataset

    storage_options = options.storage_options or None
    if options.branch is not None:
        ref = (options.branch, options.version if isinstance(options.version, int) else None)
        return Pin.of(open_version(options.uri, ref, storage_options=storage_options))
    found = dataset(options.uri, options.version, options.timestamp_as_of, storage_options=storage_options)
    return Pin.of(found.table_version)
