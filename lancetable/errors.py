"""Exceptions of lancetable, grouped by how a caller can react.

    LanceError
    ├── InvalidInputError              correct the call
    │   ├── InvalidSqlError            SQL or expression does not parse, does not type-check, or fails on a value
    │   ├── ColumnNotFoundError        unknown column
    │   ├── SchemaMismatchError        the data does not fit the table
    │   ├── InvalidSchemaError         invalid names or types in a schema
    │   ├── InvalidOperationError      well-formed, but not allowed on this table or with this data
    │   ├── OutOfRangeError            a row, range or number out of bounds
    │   └── InvalidRefError            invalid name of a tag or branch
    ├── NotFoundError                  does not exist
    │   ├── DatasetNotFoundError
    │   ├── VersionNotFoundError
    │   ├── RefNotFoundError
    │   └── IndexNotFoundError
    ├── AlreadyExistsError             table, tag, branch or column exists
    │   └── IndexExistsError           the name belongs to another index
    ├── CommitConflictError            examine the concurrent change, then decide
    │   └── RetryableCommitConflictError   run the same operation again on the new version
    ├── CommitStateUnknownError        may be committed: check before retrying, delete nothing
    ├── CleanupError                   tagged versions prevent the cleanup
    ├── UntrustedPathError             a path of a table opened with untrusted=True leads out of its root
    ├── CorruptFileError               the bytes violate the format
    │   └── LimitError                 content above a read limit
    ├── MissingPackageError            an optional package is not installed
    ├── UnsupportedFeatureError        a newer flag, version or encoding, or a feature that is not implemented
    │   └── UnsupportedTypeError       a type of a column that an index cannot store
    └── StoreError                     the storage failed; the cause is chained

Every class also has the built-in bases that an `except` clause written for pylance expects (`ValueError`, `OSError`,
`NotImplementedError`, `KeyError`, `RuntimeError`). The message is the first argument. Facts are keyword arguments and
become attributes, so that every error can be pickled. A wrong Python type raises a plain `TypeError`.
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
    "IndexExistsError",
    "IndexNotFoundError",
    "InvalidInputError",
    "InvalidOperationError",
    "InvalidRefError",
    "InvalidSchemaError",
    "InvalidSqlError",
    "LanceError",
    "LimitError",
    "MissingPackageError",
    "NotFoundError",
    "OutOfRangeError",
    "RefNotFoundError",
    "RetryableCommitConflictError",
    "SchemaMismatchError",
    "StoreError",
    "UnsupportedFeatureError",
    "UnsupportedTypeError",
    "UntrustedPathError",
    "VersionNotFoundError",
]


class LanceError(Exception):
    """Base class of all errors that lancetable raises on purpose."""

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.__dict__.update(facts)

    def __str__(self) -> str:
        # OSError would format an errno; the message is the complete description.
        return str(self.args[0]) if self.args else ""


class InvalidInputError(LanceError, ValueError):
    """An invalid argument; correct the call."""


class InvalidSqlError(InvalidInputError, OSError):
    """SQL or an expression that does not parse, does not type-check, or fails on a value."""


class ColumnNotFoundError(InvalidInputError, OSError, KeyError):
    """A column that the table does not have."""


class SchemaMismatchError(InvalidInputError, OSError):
    """Data that does not fit the schema of the table."""


class InvalidSchemaError(InvalidInputError, OSError):
    """A schema with invalid names: reserved, dotted or duplicate ones."""


class InvalidOperationError(InvalidInputError, OSError):
    """A well-formed request that this table, or this data, does not allow."""


class OutOfRangeError(InvalidInputError, OSError, IndexError, OverflowError):
    """A row, range or number out of bounds."""


class InvalidRefError(InvalidInputError, OSError):
    """An invalid name of a tag or branch."""


class NotFoundError(LanceError, FileNotFoundError, ValueError):
    """Something that does not exist; `path` is the location where it was expected."""

    path: str | None = None


class DatasetNotFoundError(NotFoundError):
    """A table that does not exist at its address."""


class VersionNotFoundError(NotFoundError):
    """A version that does not exist, or no longer exists."""

    version: int | None = None


class RefNotFoundError(NotFoundError):
    """A tag or branch that does not exist."""

    ref: str | None = None


class IndexNotFoundError(NotFoundError, KeyError, RuntimeError):
    """An index, or segments of an index, that the version does not have."""

    index: str | None = None


class AlreadyExistsError(LanceError, FileExistsError, ValueError):
    """A table, tag, branch or column that already exists."""


class IndexExistsError(AlreadyExistsError, RuntimeError):
    """An index with this name exists, and may not be replaced or is on another column."""

    index: str | None = None


class CommitConflictError(LanceError, OSError):
    """A commit that conflicts with a concurrent commit.

    `retryable` is True if running the same operation again on the newer version can succeed. `version` and
    `other_operation` are the number and the name of the committed operation.
    """

    retryable: bool = False
    version: int | None = None
    other_operation: str | None = None

    def __init__(self, message: str = "", retryable: bool | None = None, **facts: Any) -> None:
        if retryable is not None:
            facts["retryable"] = retryable
        super().__init__(message, **facts)


class RetryableCommitConflictError(CommitConflictError):
    """A commit that lost against a concurrent commit; the same operation can be run again on the newer version."""

    retryable = True


class CommitStateUnknownError(LanceError, OSError):
    """A commit with an unknown outcome: look for `transaction_uuid` before retrying, and delete nothing."""

    version: int | None = None
    transaction_uuid: str | None = None


class CleanupError(LanceError, OSError):
    """A cleanup that cannot remove versions, for example because they are tagged."""


class CorruptFileError(LanceError, OSError, ValueError):
    """Bytes that violate the format.

    `path` and `offset` are their location; `expected` and `found` describe the mismatch. The message consists of path,
    problem, expected and found value.
    """

    path: str | None = None
    offset: int | None = None
    expected: object = None
    found: object = None

    def __init__(
        self, problem: str = "", expected: object = None, found: object = None, path: str | None = None, **facts: Any
    ) -> None:
        parts = [
            f"{word} {str(fact)[:200]}" for word, fact in (("expected", expected), ("found", found)) if fact is not None
        ]
        message = f"{path}: {problem}" if path else problem
        message += f" ({', '.join(parts)})" if parts else ""
        super().__init__(message, path=path, expected=expected, found=found, **facts)


class LimitError(CorruptFileError):
    """Content above the read limit that `limit` names, such as "page_bytes"; see docs/how-to/untrusted-tables.md."""

    limit: str | None = None


class UntrustedPathError(LanceError, PermissionError, ValueError):
    """A path that leads out of the root of a table opened with `untrusted=True`.

    `place` is the manifest, link or request that names it.
    """

    path: str | None = None
    place: str | None = None


class MissingPackageError(LanceError, ImportError, ValueError):
    """An optional package that is not installed; `name` is its module."""


class UnsupportedFeatureError(LanceError, NotImplementedError, OSError, ValueError):
    """A feature flag, file version, type or encoding that this release does not support."""

    feature: str | None = None


class UnsupportedTypeError(UnsupportedFeatureError, TypeError):
    """A column whose type a kind of index does not support."""


class StoreError(LanceError, OSError):
    """A failure of the storage; the cause is chained. `errno` is the number of the system's error, if there was one."""

    path: str | None = None

    def __init__(self, message: str = "", errno: int | None = None, **facts: Any) -> None:
        super().__init__(message, errno=errno, **facts)  # in __dict__, which is pickled
        self.errno = errno
