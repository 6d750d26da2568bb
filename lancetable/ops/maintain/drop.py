"""Deletion of a whole table."""

from __future__ import annotations

import os
from collections.abc import Mapping

from lancetable.errors import CorruptFileError, DatasetNotFoundError, InvalidInputError, UnsupportedFeatureError
from lancetable.store.base import ObjectStore
from lancetable.table.version import Table


def drop(uri: str, storage_options: Mapping[str, str] | None = None, *, ignore_not_found: bool = False) -> None:
    """Delete everything below a table's root, including the root.

    Raises DatasetNotFoundError if nothing exists at `uri`, unless `ignore_not_found` is set, and InvalidInputError,
    without deleting anything, for the root of a store and for a location that contains files but no readable manifest.
    """
    table = Table.of_uri(uri, storage_options)
    store, base = table.store, table.base
    if base.strip("/") == "":
        raise InvalidInputError(f"cannot drop {uri}: it is the root of the store; pass the URI of a table")
    try:
        table.newest()
    except DatasetNotFoundError:
        if is_occupied(store, base):
            raise InvalidInputError(f"cannot drop {uri}: it contains files but not a Lance table") from None
        # Empty directories exist only in a file system.
        is_empty_directory = store.scheme == "file" and os.path.isdir(base)
        if not is_empty_directory and not ignore_not_found:
            raise DatasetNotFoundError(f"Not found: {uri}", path=uri) from None
    except CorruptFileError as error:
        raise InvalidInputError(f"cannot drop {uri}: it contains no readable manifest") from error
    except UnsupportedFeatureError:
        pass  # a table that a newer release has written
    table.handler.forget(store, base)
    store.delete_prefix(base)


def is_occupied(store: ObjectStore, base: str) -> bool:
    """Return True if an object exists below `base`."""
    return next(iter(store.list_recursive(base)), None) is not None
