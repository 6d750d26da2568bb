"""The errors lancetable raises, grouped by what the caller does next.

    LanceError
    ├── InvalidInputError              correct the call
    │   ├── InvalidSqlError            text or expression: it does not parse, type-check, or fails on a value
    │   ├── ColumnNotFoundError        unknown column
    │   ├── SchemaMismatchError        the data does not fit the table
    │   ├── InvalidSchemaError         names that no table may have
    │   ├── InvalidOperationError      well-formed, but not on this table or with this data
    │   ├── OutOfRangeError            a row, range or number beyond what is there
    │   └── InvalidRefError            no valid name of a tag or branch
    ├── NotFoundError                  not there
    │   ├── DatasetNotFoundError
    │   ├── VersionNotFoundError
    │   └── RefNotFoundError
    ├── AlreadyExistsError             already there: table, tag, branch, column
    ├── CommitConflictError            look at the other change, then decide
    │   └── RetryableCommitConflictError   run the same operation again on the new version
    ├── CommitStateUnknownError        it may have landed: look before retrying, delete nothing
    ├── CleanupError                   tagged versions stand in the way
    ├── CorruptFileError               the bytes break the format
    ├── UnsupportedFeatureError        a newer flag, version, encoding, or one that is not built
    └── StoreError                     the storage failed; the cause is chained

Every class also has the built-in bases that an `except` clause written for pylance expects (`ValueError`, `OSError`,
`NotImplementedError`). The message is the only positional argument; facts are keyword arguments and become attributes,
so that every error survives pickling. A wrong Python type stays a plain `TypeError`.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AlreadyExistsError",
    "CleanupError",
    "ColumnNotFoundError",
    "CommitConflictError",
    "CommitStateUnknownError",
    "CorruptFileError",
    "DatasetNotFoundError",
    "InvalidInputError",
    "InvalidOperationError",
    "InvalidRefError",
    "InvalidSchemaError",
    "InvalidSqlError",
    "LanceError",
    "NotFoundError",
    "OutOfRangeError",
    "RefNotFoundError",
    "RetryableCommitConflictError",
    "SchemaMismatchError",
    "StoreError",
    "UnsupportedFeatureError",
    "VersionNotFoundError",
]


class LanceError(Exception):
    """Base of every error that lancetable raises on purpose."""

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.__dict__.update(facts)

    def __str__(self) -> str:
        # OSError would print an errno that is not there; the message is the whole text.
        return str(self.args[0]) if self.args else ""


class InvalidInputError(LanceError, ValueError):
    """Correct the call: an argument is wrong in itself."""


class InvalidSqlError(InvalidInputError, OSError):
    """SQL text or an expression that does not parse, does not type-check, or fails on a value."""


class ColumnNotFoundError(InvalidInputError, OSError):
    """A column that the table does not have."""


class SchemaMismatchError(InvalidInputError, OSError):
    """The data does not fit the schema of the table."""


class InvalidSchemaError(InvalidInputError, OSError):
    """A schema that no table may have: reserved, dotted or duplicate names."""


class InvalidOperationError(InvalidInputError, OSError):
    """A well-formed request that this table, or this data, does not allow."""


class OutOfRangeError(InvalidInputError, OSError, IndexError, OverflowError):
    """A row, range or number beyond what is there."""


class InvalidRefError(InvalidInputError, OSError):
    """No valid name of a tag or branch."""


class NotFoundError(LanceError, FileNotFoundError, ValueError):
    """Something named is not there; `path` says where it was looked for."""

    path: str | None = None


class DatasetNotFoundError(NotFoundError):
    """No table at this address."""


class VersionNotFoundError(NotFoundError):
    """The table has no such version, or no longer."""

    version: int | None = None


class RefNotFoundError(NotFoundError):
    """The table has no such tag or branch."""

    ref: str | None = None


class AlreadyExistsError(LanceError, FileExistsError, ValueError):
    """A table, tag, branch or column of this name is there already."""


class CommitConflictError(LanceError, OSError):
    """Another commit made this one impossible.

    `retryable` tells whether running the same operation again on the newer version can succeed.
    """

    retryable: bool = False

    def __init__(self, message: str = "", retryable: bool | None = None, **facts: Any) -> None:
        if retryable is not None:
            facts["retryable"] = retryable
        super().__init__(message, **facts)


class RetryableCommitConflictError(CommitConflictError):
    """Another commit came first; the same operation can be run again on the newer version."""

    retryable = True


class CommitStateUnknownError(LanceError, OSError):
    """The commit may have landed or not: look for `transaction_uuid` before retrying, and delete nothing."""

    version: int | None = None
    transaction_uuid: str | None = None


class CleanupError(LanceError, OSError):
    """Versions cannot be removed, for instance because they are tagged."""


class CorruptFileError(LanceError, OSError, ValueError):
    """Bytes that break the format. `path` and `offset` say where, `expected` and `found` what."""

    path: str | None = None
    offset: int | None = None
    expected: object = None
    found: object = None


class UnsupportedFeatureError(LanceError, NotImplementedError, OSError, ValueError):
    """A feature flag, file version, type or encoding that this release does not handle."""

    feature: str | None = None


class StoreError(LanceError, OSError):
    """The storage failed; the cause is chained."""

    path: str | None = None
