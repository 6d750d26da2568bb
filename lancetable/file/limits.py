"""Limits on the resources that reading may use. They are strict for tables opened with `untrusted=True`.

    limit              default         untrusted
    metadata_bytes     512 MiB         16 MiB      message of a manifest (untrusted: the whole manifest file); end of a
                                                   data file from its column metadata on; its schema; its statistics
    metadata_entries   -               100,000     fragments of a manifest, fields of a schema, pages of a column
    file_rows          2^62            100,000,000 rows of a data file
    page_bytes         2 GiB           512 MiB     decoded bytes of a page, or of the rows of several pages that a take
                                                   decodes at once; values that are slices of the file do not count
    object_bytes       -               64 MiB      any other object that is read whole (store/confined.py)

In all tables, types nest at most 64 levels (format/schema.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lancetable.errors import CorruptFileError, LimitError
from lancetable.store.confined import REMEDY

if TYPE_CHECKING:
    from lancetable.store.base import ObjectStore


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits of reading; the docstring of the module lists them. `remedy` is appended to error messages."""

    metadata_bytes: int = 512 << 20
    metadata_entries: int = 1 << 62
    file_rows: int = 1 << 62  # the sum of two row counts fits into 63 bits
    page_bytes: int = 2 << 30
    remedy: str = ""

    def check(self, limit: str, found: int, path: str, what: str) -> None:
        """Raise the error of `exceeded` if `found`, the number of `what`, is above the limit named `limit`."""
        if found > getattr(self, limit):
            raise self.exceeded(limit, f"too many {what}", path, found)

    def exceeded(self, limit: str, what: str, path: str, found: object = None) -> CorruptFileError:
        """Return the error for content above a limit; the caller raises it.

        It is a LimitError if the table might be readable without `untrusted`, otherwise a CorruptFileError.
        """
        kind = LimitError if self.remedy else CorruptFileError
        problem = f"{what}: above the limit {limit}{self.remedy}"
        return kind(problem, f"at most {getattr(self, limit)}", found, path=path, limit=limit)


DEFAULT_LIMITS: Final = ReadLimits()
UNTRUSTED_LIMITS: Final = ReadLimits(16 << 20, 100_000, 100_000_000, 512 << 20, f"; {REMEDY}")


def limits_of(store: ObjectStore) -> ReadLimits:
    """Return the limits for objects of a store."""
    return UNTRUSTED_LIMITS if store.capabilities.roots else DEFAULT_LIMITS
