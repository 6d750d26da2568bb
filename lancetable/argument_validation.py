"""Validation and conversion of the arguments of public functions."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa
import pyarrow.compute as pc

from lancetable import ops
from lancetable.errors import InvalidInputError, InvalidOperationError, OutOfRangeError
from lancetable.format.version import FileVersion
from lancetable.store.open import FileSystemUri

if TYPE_CHECKING:
    from lancetable.types import Reference, WriteMode


COMMIT_MESSAGE_KEY = "__lance_commit_message"  # key of a transaction property
DEFAULT_BLOB_BUFFER_SIZE = 512 * 1024
DEFAULT_MAX_BYTES_PER_FILE = 90 * 1024 * 1024 * 1024
_MODES: dict[str, WriteMode] = {"create": "create", "append": "append", "overwrite": "overwrite"}
_U64 = 2**64
_CHANGES: dict[str, type] = {"name": str, "nullable": bool, "data_type": pa.DataType}  # keys of an alteration


def uri_string(uri: Any) -> str:
    """Return a URI, a path, or a pair of an fsspec file system and a path, as a string. Raises TypeError."""
    if isinstance(uri, tuple):
        return FileSystemUri.of(uri)
    path = os.fspath(uri) if isinstance(uri, os.PathLike) else uri
    if not isinstance(path, str):
        raise TypeError(f"uri must be a string or a path, got {type(uri).__name__}")
    return path


def check_integer(name: str, value: Any) -> int:
    """Return an integer as an int. Raises TypeError for other values, including bool."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    return int(value.__index__())


def check_flag(name: str, value: Any, *, optional: bool = False) -> None:
    """Raise TypeError unless a value is True or False; None is valid if it is `optional`."""
    if not isinstance(value, bool) and not (optional and value is None):
        raise TypeError(f"{name} must be True or False, got {type(value).__name__}")


def check_string(name: str, value: Any, *, optional: bool = False) -> None:
    """Raise TypeError unless a value is a string; None is valid if it is `optional`."""
    if not isinstance(value, str) and not (optional and value is None):
        raise TypeError(f"{name} must be a string, got {type(value).__name__}")


def check_count(name: str, value: Any) -> int:
    """Return a count as an int. Raises TypeError for other types, OutOfRangeError unless it is from 0 to 2^63 - 1."""
    number = check_integer(name, value)
    if number < 0:
        raise OutOfRangeError(f"{name} must be non-negative, got {number}")
    if number >= 2**63:
        raise OutOfRangeError(f"{name} must be below 2^63, got {number}")
    return number


def check_positive(name: str, value: Any) -> int:
    """Return a count of at least 1. Raises InvalidInputError for 0, and the errors of `check_count`."""
    number = check_count(name, value)
    if number == 0:
        raise InvalidInputError(f"{name} must be at least 1")
    return number


def check_filter(name: str, value: Any, *, required: bool = False) -> None:
    """Raise TypeError unless a filter is an SQL string or an expression; None is valid unless it is `required`."""
    if not isinstance(value, (str, pc.Expression)) and (required or value is not None):
        raise TypeError(f"{name} must be an SQL string or a pyarrow expression, got {type(value).__name__}")


def check_names(name: str, value: Any) -> tuple[str, ...]:
    """Return a list of names as a tuple, empty for None. Raises InvalidInputError, also for a single string."""
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidInputError(f"{name} must be a list of names, got {type(value).__name__}")
    names = tuple(value)
    if not all(isinstance(item, str) for item in names):
        raise InvalidInputError(f"{name} must be a list of names, got {names!r}")
    return names


def check_timeout(name: str, value: Any) -> float:
    """Return a time limit in seconds, infinite for None.

    Raises TypeError unless it is a timedelta, InvalidInputError if it is negative, InvalidOperationError if it is zero.
    """
    if value is None:
        return math.inf
    if not isinstance(value, timedelta):
        raise TypeError(f"{name} must be a timedelta or None, got {type(value).__name__}")
    if value < timedelta(0):
        raise InvalidInputError(f"{name} must not be negative, got {value}")
    if not value:
        raise InvalidOperationError(f"{name} must not be zero; pass None for no limit")
    return value.total_seconds()


def check_choice(name: str, value: Any, choices: Any) -> None:
    """Check that a value is one of the strings of a `Literal` type.

    Raises
    ------
    InvalidInputError
        If it is another value.
    """
    *first, last = map(repr, get_args(choices))
    if value not in get_args(choices):
        raise InvalidInputError(f"{name} must be {', '.join(first)} or {last}, got {value!r}")


def check_mode(mode: Any) -> WriteMode:
    """Return a write mode in lower case. Raises InvalidInputError for an unknown one."""
    known = _MODES.get(mode.lower()) if isinstance(mode, str) else None
    if known is None:
        raise InvalidInputError(f"Invalid mode {mode!r}: expected one of {', '.join(_MODES)}")
    return known


def parse_reference(version: Any, *, branches: bool = False) -> Reference:
    """Return a version number, a tag, or with `branches` a pair (branch, number).

    Raises InvalidInputError or InvalidOperationError for another type, OutOfRangeError for an invalid number.
    """
    if isinstance(version, str):
        return version
    if branches and isinstance(version, tuple) and len(version) == 2:
        branch, number = version
        if branch is not None and not isinstance(branch, str):
            raise InvalidInputError(f"a branch name must be a string, got {type(branch).__name__}")
        return branch, None if number is None else version_number(number)
    if not isinstance(version, bool) and hasattr(version, "__index__"):
        return version_number(version)
    if branches:
        raise InvalidInputError(f"a version must be a number, a tag or (branch, version), got {type(version).__name__}")
    raise InvalidOperationError(f"version must be an integer or a string, got {type(version).__name__}")


def version_number(version: Any) -> int:
    """Return a version number as an int. Raises TypeError for other types, OutOfRangeError beyond 64 bits."""
    number = check_integer("version", version)
    if not 0 <= number < _U64:
        raise OutOfRangeError(f"a version number must be from 0 to 2^64 - 1, got {number}")
    return number


def parse_asof(asof: Any) -> datetime:
    """Return a time from a datetime, a pandas timestamp, or a string.

    Raises InvalidInputError for an invalid string, TypeError for another type.
    """
    if isinstance(asof, datetime):
        return asof
    if not isinstance(asof, str):
        raise TypeError(f"asof must be a datetime or a string, got {type(asof).__name__}")
    with suppress(ValueError):
        return datetime.fromisoformat(asof.strip())
    try:
        import pandas as pd

        parsed: datetime = pd.to_datetime(asof).to_pydatetime()
    except (ImportError, ValueError, AttributeError) as error:
        raise InvalidInputError(
            f"Failed to parse timestamp string {asof!r}: write it as 2026-01-31 13:45:00, or install pandas"
        ) from error
    return parsed


def warn_of_cache_size(index_cache_size: int | None) -> None:
    """Warn the caller's caller of the deprecated argument `index_cache_size`, if it is given."""
    if index_cache_size is not None:
        warnings.warn(
            "The 'index_cache_size' parameter is deprecated. Use 'index_cache_size_bytes' instead.",
            DeprecationWarning,
            stacklevel=3,
        )


def version_to_write(data_storage_version: str | None, use_legacy_format: bool | None) -> FileVersion | None:
    """Return the format of new files, or None to keep that of the table.

    Raises TypeError unless the version is a string, InvalidInputError if it is unknown, UnsupportedFeatureError if it
    is not released.
    """
    if use_legacy_format is not None:
        warnings.warn("use_legacy_format is deprecated: use data_storage_version", DeprecationWarning, stacklevel=3)
        return FileVersion.LEGACY if use_legacy_format else FileVersion.parse("stable")
    if data_storage_version is None:
        return None
    if not isinstance(data_storage_version, str):
        raise TypeError(f"data_storage_version must be a string, got {type(data_storage_version).__name__}")
    return FileVersion.parse(data_storage_version)


def transaction_properties_of(properties: Mapping[str, str] | None, message: str | None) -> dict[str, str]:
    """Return the properties of a transaction, including the commit message."""
    result = dict(properties or {})
    if message is not None:
        result[COMMIT_MESSAGE_KEY] = message
    return result


def check_mapping(values: Any) -> dict[str, Any]:
    """Return a dict with string keys. Raises TypeError for anything else."""
    if not isinstance(values, Mapping):
        raise TypeError(f"values must be a dict, got {type(values).__name__}")
    for key in values:
        if not isinstance(key, str):
            raise TypeError(f"keys must be strings, got {type(key).__name__}")
    return dict(values)


def check_changes(values: Any) -> dict[str, str | None]:
    """Return changes to a map of strings, where None deletes a key. Raises TypeError for other values."""
    changes = check_mapping(values)
    for key, value in changes.items():
        if value is not None and not isinstance(value, str):
            raise TypeError(f"the value of {key!r} must be a string or None, got {type(value).__name__}")
    return changes


def parse_alteration(alteration: Any) -> ops.alter_columns.Alteration:
    """Parse one dict of `alter_columns`.

    Raises InvalidInputError for a missing path, unknown keys or a dict without a change, TypeError for wrong values.
    """
    given = check_mapping(alteration)
    path = given.pop("path", None)
    if not isinstance(path, str):
        raise InvalidInputError("path is required")
    for key, value in given.items():
        if key not in _CHANGES:
            raise InvalidInputError(f"Unknown key: {key}. Valid keys are name, nullable, and data_type.")
        if value is not None and not isinstance(value, _CHANGES[key]):
            raise TypeError(f"{key} must be a {_CHANGES[key].__name__}, got {type(value).__name__}")
    if all(value is None for value in given.values()):
        raise InvalidInputError("At least one of name, nullable, or data_type must be specified")
    return ops.alter_columns.Alteration(path, **given)
