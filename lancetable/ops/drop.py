"""Delete a table."""

from __future__ import annotations

import os
from collections.abc import Mapping

from lancetable.errors import CorruptFileError, DatasetNotFoundError, InvalidInputError, UnsupportedFeatureError
from lancetable.handlers.choose import choose_handler
from lancetable.store.base import ObjectStore
from lancetable.store.open import open_store
from lancetable.table.version import open_version

__all__ = ["drop"]


def drop(uri: str, storage_options: Mapping[str, str] | None = None, *, ignore_not_found: bool = False) -> None:
    """Delete everything below a table's root, the root too.

    Raises DatasetNotFoundError if nothing is there, unless `ignore_not_found`; InvalidInputError, with nothing
    deleted, for a place that is not empty and has no manifest that can be read.
    """
    store, base = open_store(uri, storage_options)
    if base.strip("/") == "":
        raise InvalidInputError(f"{uri} is the root of a whole store: refusing to delete it")
    try:
        open_version(uri, storage_options=storage_options)
    except DatasetNotFoundError:
        if is_occupied(store, base):
            raise InvalidInputError(f"{uri} holds files but no Lance table: refusing to delete it") from None
        # Only a file system has empty directories; elsewhere a place without objects is not there.
        is_empty_directory = store.scheme == "file" and os.path.isdir(base)
        if not is_empty_directory and not ignore_not_found:
            raise DatasetNotFoundError(f"Not found: {uri}", path=uri) from None
    except CorruptFileError as error:
        raise InvalidInputError(f"{uri} has no manifest that can be read: refusing to delete it") from error
    except UnsupportedFeatureError:
        pass  # a table all the same, made by a newer writer
    choose_handler(store, uri, None, storage_options).forget(store, base)
    store.delete_prefix(base)


def is_occupied(store: ObjectStore, base: str) -> bool:
    """Whether any object lies below `base`."""
    return next(iter(store.list_recursive(base)), None) is not None
