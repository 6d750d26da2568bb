"""From an address to a store.

    /data/t, ./t, ~/t, file:///data/t     LocalStore
    memory://t                            MemoryStore, shared by the whole process
    s3:// gs:// az:// abfss://            CloudStore: obstore, or s3fs, gcsfs and adlfs
    s3+ddb://b/t?ddbTableName=n           the same, and a DynamoDB table that decides commits (handlers/choose.py)
    sftp:// hdfs:// ...                   FsspecStore: whatever fsspec knows
    (file system, path)                   the store of an fsspec file system that the caller hands in

Nothing is contacted here. An address found inside a table never comes this way unless its scheme and authority are
those of the table: some file systems open a connection as soon as they are constructed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from lancetable.errors import InvalidInputError
from lancetable.store.local import LocalStore

if TYPE_CHECKING:
    from lancetable.store.base import ObjectStore

__all__ = ["Mounted", "external_table", "mounted", "open_store", "option", "without_external"]

EXTERNAL_SUFFIX = "+ddb"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):(?://|/)")
_CHAINED = re.compile(r"[A-Za-z0-9+.\-]+::[^/]*://|[A-Za-z][A-Za-z0-9+.\-]+://.*::")
_OFF = frozenset(("0", "false", "no", "off"))
_ON = frozenset(("1", "true", "yes", "on"))
_local_stores: dict[tuple[bool, bool], LocalStore] = {}


class Mounted(str):
    """The address of a place in a file system that the caller has handed in: text like any other, which `open_store`
    follows into that very file system."""

    pair: tuple[Any, str]

    def __reduce__(self) -> tuple[Any, ...]:
        return mounted, (self.pair,)


def mounted(pair: tuple[Any, str]) -> Mounted:
    """The address of a pair of an fsspec file system and a path in it. Raises InvalidInputError for anything else."""
    store, path = _open_file_system(pair)
    made = Mounted(store.uri(path))
    made.pair = pair
    return made


def open_store(
    uri: str | os.PathLike[str] | tuple[Any, str], storage_options: Mapping[str, str] | None = None
) -> tuple[ObjectStore, str]:
    """The store of an address, and the path inside it (without a slash at the end).

    `uri` is a path, a URL, or a pair of an fsspec file system and a path in it. A relative path becomes absolute, `~`
    is the home directory. Raises InvalidInputError for an address that cannot be understood, and
    UnsupportedFeatureError for a store that this release, or this installation, lacks.
    """
    if isinstance(uri, (tuple, Mounted)):
        return _open_file_system(uri if isinstance(uri, tuple) else uri.pair)
    text = os.fspath(uri)
    if not isinstance(text, str):
        raise TypeError(f"an address is text or a path, not {type(text).__name__}")
    if not text:
        raise InvalidInputError("the address of a table is empty")
    if "\0" in text:
        raise InvalidInputError(f"an address holds no NUL character: {text!r}")
    match = _SCHEME.match(text) if ":" in text else None
    if _CHAINED.match(text):
        raise InvalidInputError("chained addresses (a::b) are not supported; pass a pair of a file system and a path")
    if match is None:
        return _open_local(text, storage_options)
    scheme = match[1].lower()
    if scheme == "file":
        return _open_local(_file_path(text), storage_options)
    _check_url(text, scheme)
    if scheme == "memory":
        from lancetable.store.memory import MemoryStore

        path = _memory_path(text)
        return MemoryStore(path), path
    if scheme.endswith(EXTERNAL_SUFFIX):
        scheme, text = scheme[: -len(EXTERNAL_SUFFIX)], without_external(text)
    from lancetable.store.fsspec_cloud import CLOUD_OF_SCHEME

    if scheme in CLOUD_OF_SCHEME:
        from lancetable.store.cloud import open_cloud

        return open_cloud(text, scheme, storage_options)
    from lancetable.store.fsspec_store import open_fsspec

    return open_fsspec(text, scheme, storage_options)


def without_external(uri: str) -> str:
    """`s3+ddb://bucket/t?ddbTableName=n` -> `s3://bucket/t`; any other address as it is."""
    scheme, separator, rest = uri.partition("://")
    if not separator or not scheme.lower().endswith(EXTERNAL_SUFFIX):
        return uri
    return f"{scheme[: -len(EXTERNAL_SUFFIX)]}://{rest.partition('?')[0]}"


def external_table(uri: str) -> str | None:
    """The DynamoDB table that an address names, None for an address that names none.

    Raises InvalidInputError unless the query is exactly one `ddbTableName=...`.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator or not scheme.lower().endswith(EXTERNAL_SUFFIX):
        return None
    pairs = parse_qsl(rest.partition("?")[2], keep_blank_values=True)
    if len(pairs) != 1 or pairs[0][0] != "ddbTableName" or not pairs[0][1]:
        raise InvalidInputError(
            f"a {scheme} address names its DynamoDB table and nothing else: {scheme}://bucket/path?ddbTableName=table"
        )
    return pairs[0][1]


def option(storage_options: Mapping[str, Any] | None, name: str, default: bool) -> bool:
    """A yes-or-no storage option. Raises InvalidInputError for any other value."""
    value = storage_options.get(name) if storage_options else None
    if value is None:
        return default
    text = str(value).strip().lower()
    if text in _ON or text in _OFF:
        return text in _ON
    raise InvalidInputError(f"storage option {name}: true or false, not {value!r}")


def _open_local(path: str, storage_options: Mapping[str, str] | None) -> tuple[LocalStore, str]:
    fsync = option(storage_options, "fsync", os.environ.get("LANCETABLE_FSYNC", "1").strip().lower() not in _OFF)
    mmap = option(storage_options, "mmap", True)
    if storage_options:
        _warn_of_unknown(storage_options)
    store = _local_stores.get((fsync, mmap))
    if store is None:
        store = _local_stores.setdefault((fsync, mmap), LocalStore(fsync=fsync, mmap=mmap))
    return store, _absolute(path)


def _warn_of_unknown(storage_options: Mapping[str, str]) -> None:
    """Options of clouds may be given for local tables too, where they mean nothing; others are likely misspelled."""
    from lancetable.store.cloud_options import OWN_OPTIONS, is_cloud_option, warn_of_option

    for name in storage_options:
        if name.lower() not in OWN_OPTIONS and not is_cloud_option(name):
            warn_of_option(name, "local tables")


def _absolute(path: str) -> str:
    if path.startswith("~"):
        path = os.path.expanduser(path)
    path = os.path.abspath(path)
    return path.replace("\\", "/") if sys.platform == "win32" else path


def _file_path(text: str) -> str:
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost"):
        raise InvalidInputError(f"a file URL names no host: {text!r}; write file:///path")
    if parts.query or parts.fragment:
        raise InvalidInputError(f"a file URL has no query and no fragment: {text!r}; write %3F for ? and %23 for #")
    path = unquote(parts.path)
    if "\0" in path:
        raise InvalidInputError(f"an address holds no NUL character: {text!r}")
    if sys.platform == "win32" and re.match(r"/[A-Za-z]:", path):
        path = path[1:]
    return path


def _check_url(text: str, scheme: str) -> None:
    """Refuse what would be read as part of a bucket or a key, or show up in messages."""
    if "://" not in text:
        raise InvalidInputError(f"not an address: {scheme}: is followed by two slashes")
    authority, _, rest = text.partition("://")[2].partition("/")
    if "@" in authority and scheme not in ("abfs", "abfss", "github", "hf"):
        # The address itself is left out of the message: what stands before @ is a secret.
        raise InvalidInputError(
            f"a {scheme} address carries no user or password before @; pass credentials in storage_options"
        )
    if scheme.endswith(EXTERNAL_SUFFIX):
        if scheme != "s3" + EXTERNAL_SUFFIX:
            raise InvalidInputError(f"{scheme}://: a DynamoDB table decides commits of s3+ddb:// addresses only")
        external_table(text)
        rest, text = rest.partition("?")[0], without_external(text)
    if "?" in text or "#" in text:
        raise InvalidInputError(f"a {scheme} address has no query and no fragment; pass options in storage_options")
    if any(segment in (".", "..") for segment in (authority, *rest.split("/"))):
        raise InvalidInputError(f"an address has no '.' or '..' in it: {text!r}")


def _memory_path(text: str) -> str:
    return text.partition("://")[2].strip("/")


def _open_file_system(pair: tuple[Any, str]) -> tuple[ObjectStore, str]:
    from lancetable.store.fsspec_store import wrap_fsspec

    if len(pair) != 2 or not isinstance(pair[1], str):
        raise InvalidInputError("a pair of a file system and a path is expected")
    return wrap_fsspec(pair[0], pair[1])
