"""A table at one version, as a small value that travels to other processes: what all parts of one job look at."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from lancetable.errors import InvalidInputError, VersionNotFoundError
from lancetable.table.version import open_version, uri_of_branch

if TYPE_CHECKING:
    from lancetable.spark.options import SourceOptions
    from lancetable.table.version import TableVersion

_KEPT = 8
_opened: OrderedDict[Pin, TableVersion] = OrderedDict()
_lock = Lock()


@dataclass(frozen=True)
class Pin:
    """One version of a table, which no later commit and no move of a tag changes. `mark` distinguishes it from the
    version of the same number in a table that was created again at the address."""

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

        Raises VersionNotFoundError, also if the table was removed and created again since.
        """
        with _lock:
            found = _opened.pop(self, None)
        if found is None:
            ref = self.version if self.branch is None else (self.branch, self.version)
            found = open_version(self.uri, ref, storage_options=self.options)
            if self.mark and mark_of(found) != self.mark:
                raise VersionNotFoundError(
                    f"version {self.version} of {self.uri} is not the one of the plan, because the table was removed"
                    " and created again; start the job again",
                    version=self.version,
                )
        with _lock:
            _opened[self] = found
            while len(_opened) > _KEPT:
                _opened.popitem(last=False)
        return found


def mark_of(version: TableVersion) -> str:
    """Return the identity of a commit: the name of its transaction file, or else its time."""
    return version.manifest.transaction_file or str(version.manifest.timestamp_ns)


def pinned(options: SourceOptions) -> Pin:
    """Return the version that the options name, the newest one if they name none.

    Raises DatasetNotFoundError, VersionNotFoundError, RefNotFoundError; InvalidInputError for a tag with a branch.
    """
    from lancetable.dataset import dataset

    storage_options = options.storage_options or None
    uri = options.uri
    if options.branch is not None:
        if isinstance(options.version, str):
            raise InvalidInputError(
                f"tag {options.version!r} with branch {options.branch!r}: a tag names a version of its own branch; pass"
                " one of them"
            )
        found_on_branch = open_version(uri, (options.branch, options.version), storage_options=storage_options)
        if options.timestamp_as_of is None:
            return Pin.of(found_on_branch)
        uri = uri_of_branch(found_on_branch, options.branch)
    found = dataset(uri, options.version, options.timestamp_as_of, storage_options=storage_options)
    return Pin.of(found.table_version)
