"""Resolution of addresses to stores.

    /data/t, ./t, ~/t, file:///data/t     LocalStore
    memory://t                            MemoryStore, shared by the whole process
    s3:// gs:// az:// abfss://            CloudStore, through obstore
    s3+ddb://b/t?ddbTableName=n           the same, with commits through a DynamoDB table (handlers/choose_handler.py)
    sftp:// hdfs:// ...                   FsspecStore: any other scheme that fsspec supports
    (file system, path)                   FsspecStore of the object, or CloudFsspecStore if it is one of a cloud
    any of them, untrusted=true           ConfinedStore of that store

Opening sends no request. An address that is read from a table is opened only if its scheme and authority are those of
the table, because some file systems connect as soon as they are constructed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from lancetable.errors import InvalidInputError
from lancetable.store.confined import confine
from lancetable.store.local import LocalStore
from lancetable.store.schemes import CLOUD_OF_SCHEME, EXTERNAL_SUFFIX

if TYPE_CHECKING:
    from typing_extensions import Self

    from lancetable.store.base import ObjectStore

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):(?://|/)")
_CHAINED = re.compile(r"[A-Za-z0-9+.\-]+::[^/]*://|[A-Za-z][A-Za-z0-9+.\-]+://.*::")
_OFF = frozenset(("0", "false", "no", "off"))
_ON = frozenset(("1", "true", "yes", "on"))
_local_store = cache(LocalStore)


class FileSystemUri(str):
    """Address of a path in a file system object of the caller.

    It prints and compares like the address string. `open_store` opens `path` in `file_system`, so the `uri` of a
    dataset in a file system object can be opened again.
    """

    file_system: Any
    path: str
    location: tuple[ObjectStore, str]

    def __new__(cls, file_system: Any, path: str) -> Self:
        """Create the address. Raises InvalidInputError if the object is not an fsspec file system."""
        store, path_in_store = _open_file_system((file_system, path))
        uri = super().__new__(cls, store.uri(path_in_store))
        uri.file_system, uri.path = file_system, path
        uri.location = store, path_in_store  # the store renews its connections after a fork
        return uri

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.file_system, self.path)

    @classmethod
    def of(cls, pair: tuple[Any, str]) -> Self:
        """Return the address of a pair of a file system object and a path in it. Raises InvalidInputError."""
        return cls(*_check_pair(pair))


def open_store(
    uri: str | os.PathLike[str] | tuple[Any, str],
    storage_options: Mapping[str, str] | None = None,
    *,
    is_file: bool = False,
) -> tuple[ObjectStore, str]:
    """Return the store of an address and the path in it, without a slash at the end.

    Parameters
    ----------
    uri
        A path, a URL, or a pair of an fsspec file system and a path in it. A relative path becomes absolute, and `~` is
        replaced by the home directory.
    storage_options
        Options of the store and of its client. With `untrusted`, the store is confined to the address.
    is_file
        The address is that of a single file; an untrusted store is confined to the directory of the file.

    Raises
    ------
    TypeError
        If `uri` is not a string, a path or a pair.
    InvalidInputError
        If the address or an option is invalid.
    UnsupportedFeatureError
        If this release does not support the store, or a package that it needs is not installed.
    """
    store, path = _open(uri, storage_options)
    if option(storage_options, "untrusted", False):
        store = confine(store, path.rpartition("/")[0] if is_file else path)
    return store, path


def with_untrusted(storage_options: Mapping[str, Any] | None, untrusted: bool) -> Mapping[str, Any] | None:
    """Return storage options; with `untrusted`, they include this option, so that it applies wherever they are used."""
    return {**(storage_options or {}), "untrusted": "true"} if untrusted else storage_options


def _open(uri: Any, storage_options: Mapping[str, str] | None) -> tuple[ObjectStore, str]:
    if isinstance(uri, FileSystemUri):
        return uri.location
    if isinstance(uri, tuple):
        return _open_file_system(_check_pair(uri))
    uri_string = os.fspath(uri)
    if not isinstance(uri_string, str):
        raise TypeError(f"expected a string or a path as the address, got {type(uri_string).__name__}")
    if not uri_string:
        raise InvalidInputError("empty table address; pass a path or a URL")
    if "\0" in uri_string:
        raise InvalidInputError(f"invalid address, contains a NUL character: {uri_string!r}")
    match = _SCHEME.match(uri_string) if ":" in uri_string else None
    if _CHAINED.match(uri_string):
        raise InvalidInputError("chained addresses (a::b) are not supported; pass a pair of a file system and a path")
    if match is None:
        return _open_local(uri_string, storage_options)
    scheme = match[1].lower()
    if scheme == "file":
        return _open_local(_file_path(uri_string), storage_options)
    _check_url(uri_string, scheme)
    if scheme == "memory":
        from lancetable.store.memory import MemoryStore

        _check_unknown(storage_options, "tables in memory")
        path = uri_string.partition("://")[2].strip("/")
        return MemoryStore(path), path
    if scheme.endswith(EXTERNAL_SUFFIX):
        scheme, uri_string = scheme[: -len(EXTERNAL_SUFFIX)], without_external(uri_string)
    if scheme in CLOUD_OF_SCHEME:
        from lancetable.store.clouds.cloud import open_cloud

        return open_cloud(uri_string, scheme, storage_options)
    from lancetable.store.fsspec_store import open_fsspec

    return open_fsspec(uri_string, scheme, storage_options)


def without_external(uri: str) -> str:
    """Return an address without its DynamoDB part: `s3+ddb://bucket/t?ddbTableName=n` -> `s3://bucket/t`.

    Any other address is returned unchanged.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator or not scheme.lower().endswith(EXTERNAL_SUFFIX):
        return uri
    return f"{scheme[: -len(EXTERNAL_SUFFIX)]}://{rest.partition('?')[0]}"


def external_table(uri: str) -> str | None:
    """Return the DynamoDB table in an address, or None if the address has no `+ddb` scheme.

    Raises InvalidInputError unless the query is exactly one `ddbTableName=...`.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator or not scheme.lower().endswith(EXTERNAL_SUFFIX):
        return None
    pairs = parse_qsl(rest.partition("?")[2], keep_blank_values=True)
    if len(pairs) != 1 or pairs[0][0] != "ddbTableName" or not pairs[0][1]:
        raise InvalidInputError(
            f"invalid {scheme} address: the query must be ddbTableName only; "
            f"write {scheme}://bucket/path?ddbTableName=table"
        )
    return pairs[0][1]


def option(storage_options: Mapping[str, Any] | None, name: str, default: bool) -> bool:
    """Return the value of a boolean storage option. Raises InvalidInputError for any other value."""
    value = storage_options.get(name) if storage_options else None
    if value is None:
        return default
    lowered = str(value).strip().lower()
    if lowered in _ON or lowered in _OFF:
        return lowered in _ON
    raise InvalidInputError(f"storage option {name}: expected true or false, got {value!r}")


def _open_local(path: str, storage_options: Mapping[str, str] | None) -> tuple[LocalStore, str]:
    fsync = option(storage_options, "fsync", os.environ.get("LANCETABLE_FSYNC", "1").strip().lower() not in _OFF)
    mmap = option(storage_options, "mmap", True)
    _check_unknown(storage_options, "local tables")
    return _local_store(fsync=fsync, mmap=mmap), _absolute(path)


def _check_unknown(storage_options: Mapping[str, str] | None, place: str) -> None:
    """Check for unknown options. Cloud options are accepted, although they have no effect on other stores."""
    if storage_options:
        from lancetable.store.clouds.options import check_option

        for name in storage_options:
            check_option(name, place)


def _absolute(path: str) -> str:
    if path.startswith("~"):
        path = os.path.expanduser(path)
    path = os.path.abspath(path)
    return path.replace("\\", "/") if sys.platform == "win32" else path


def _file_path(uri_string: str) -> str:
    parts = urlsplit(uri_string)
    if parts.netloc not in ("", "localhost"):
        raise InvalidInputError(f"file URL with a host: {uri_string!r}; write file:///path")
    if parts.query or parts.fragment:
        raise InvalidInputError(f"file URL with a query or fragment: {uri_string!r}; write %3F for ? and %23 for #")
    path = unquote(parts.path)
    if "\0" in path:
        raise InvalidInputError(f"invalid address, contains a NUL character: {uri_string!r}")
    if sys.platform == "win32" and re.match(r"/[A-Za-z]:", path):
        path = path[1:]
    return path


def _check_url(uri_string: str, scheme: str) -> None:
    """Raise InvalidInputError for parts that would be taken for a bucket or key, or that would leak into messages."""
    if "://" not in uri_string:
        raise InvalidInputError(f"invalid address: expected two slashes after {scheme}:")
    authority, _, rest = uri_string.partition("://")[2].partition("/")
    if "@" in authority and scheme not in ("abfs", "abfss", "github", "hf"):
        # The message omits the address, because the part before @ may be a password.
        raise InvalidInputError(
            f"{scheme} address with a user or password before @; pass credentials in storage_options"
        )
    if scheme.endswith(EXTERNAL_SUFFIX):
        if scheme != "s3" + EXTERNAL_SUFFIX:
            raise InvalidInputError(f"unsupported scheme {scheme}://: only s3+ddb:// can commit through DynamoDB")
        external_table(uri_string)
        rest, uri_string = rest.partition("?")[0], without_external(uri_string)
    if "?" in uri_string or "#" in uri_string:
        raise InvalidInputError(f"{scheme} address with a query or fragment; pass options in storage_options")
    if any(segment in (".", "..") for segment in (authority, *rest.split("/"))):
        raise InvalidInputError(f"address with a '.' or '..' segment: {uri_string!r}; write the resolved path")


def _check_pair(pair: tuple[Any, ...]) -> tuple[Any, str]:
    if len(pair) != 2 or not isinstance(pair[1], str):
        raise InvalidInputError("expected a pair of an fsspec file system and a path string")
    return pair[0], pair[1]


def _open_file_system(pair: tuple[Any, str]) -> tuple[ObjectStore, str]:
    """Return the store of a file system object, and the path in it. A local file system is opened without fsspec."""
    from fsspec import AbstractFileSystem

    file_system, path = pair
    if not isinstance(file_system, AbstractFileSystem):
        raise InvalidInputError(f"expected an fsspec file system, got {type(file_system).__name__}")
    protocol = file_system.protocol if isinstance(file_system.protocol, str) else file_system.protocol[0]
    path = file_system._strip_protocol(path).rstrip("/")
    if protocol in ("file", "local"):
        return _open_local(path, None)
    if protocol in CLOUD_OF_SCHEME and hasattr(file_system, "split_path"):
        from lancetable.store.clouds.fsspec_client import wrap_cloud

        return wrap_cloud(file_system, protocol, path)
    from lancetable.store.fsspec_store import FsspecStore

    return FsspecStore(protocol, {}, file_system), path
