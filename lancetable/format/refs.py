"""Tags and branches: the small JSON files below `_refs`, and the names they may have."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from lancetable.errors import CorruptFileError, InvalidRefError

__all__ = ["MAIN", "BranchContents", "TagContents", "check_branch_name", "check_tag_name", "format_time", "parse_time"]

MAIN: Final = "main"
MAX_REF_BYTES: Final = 240  # with ".json" and a temporary suffix still a legal file name everywhere
MAX_U64: Final = 2**64 - 1

_SEGMENT: Final = re.compile(r"[\w.\-]+")


@dataclass(frozen=True, slots=True)
class TagContents:
    """A tag: a name for one version. Times are text (RFC 3339, nanoseconds, UTC); older writers leave them out."""

    version: int
    manifest_size_bytes: int
    branch: str | None = None  # None: main
    created_at: str | None = None
    updated_at: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)

    def to_json(self) -> bytes:
        """The file's bytes, laid out as other writers do."""
        return _dump(
            {
                "branch": self.branch,
                "version": self.version,
                "createdAt": self.created_at,
                "updatedAt": self.updated_at,
                "manifestSize": self.manifest_size_bytes,
                "metadata": dict(self.metadata),
            }
        )

    @classmethod
    def from_json(cls, data: bytes | memoryview, path: str | None = None) -> TagContents:
        """Raises CorruptFileError, naming `path`, for anything but a tag."""
        value = _load(data, path)
        return cls(
            _get(value, "version", int, path),
            _get(value, "manifestSize", int, path),
            _branch(value, "branch", path),
            _get_optional(value, "createdAt", str, path),
            _get_optional(value, "updatedAt", str, path),
            _metadata(value, path),
        )


@dataclass(frozen=True, slots=True)
class BranchContents:
    """A branch and where it sprang from. `lineage` lists (parent version, 32 hex digits) from main on down."""

    parent_version: int
    create_at_seconds: int
    manifest_size_bytes: int
    parent_branch: str | None = None  # None: main
    lineage: tuple[tuple[int, str], ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)

    def to_json(self) -> bytes:
        """The file's bytes, laid out as other writers do."""
        return _dump(
            {
                "parentBranch": self.parent_branch,
                "identifier": {"version_mapping": [list(step) for step in self.lineage]},
                "parentVersion": self.parent_version,
                "createAt": self.create_at_seconds,
                "manifestSize": self.manifest_size_bytes,
                "metadata": dict(self.metadata),
            }
        )

    @classmethod
    def from_json(cls, data: bytes | memoryview, path: str | None = None) -> BranchContents:
        """Raises CorruptFileError, naming `path`, for anything but a branch."""
        value = _load(data, path)
        identifier = _get_optional(value, "identifier", dict, path) or {}
        steps = identifier.get("version_mapping") or []
        try:
            lineage = tuple((int(version), str(step_id)) for version, step_id in steps)
        except (TypeError, ValueError, OverflowError) as error:
            raise CorruptFileError(f"malformed branch lineage: {path or 'no path'}", path=path) from error
        return cls(
            _get(value, "parentVersion", int, path),
            _get(value, "createAt", int, path),
            _get(value, "manifestSize", int, path),
            _branch(value, "parentBranch", path),
            lineage,
            _metadata(value, path),
        )


# ------------------------------------------------------------------------------------------------------------ names


def check_tag_name(name: str) -> str:
    """Return the name if a tag may have it, else raise InvalidRefError saying why not."""
    if not name:
        raise InvalidRefError("Ref is invalid: Ref cannot be empty", ref=name)
    if not _SEGMENT.fullmatch(name):
        raise InvalidRefError(
            f"Ref is invalid: {name!r}: Ref characters must be either alphanumeric, '.', '-' or '_'", ref=name
        )
    for wrong, complaint in (
        (name.startswith("."), "cannot begin with a dot"),
        (name.endswith("."), "cannot end with a dot"),
        (".." in name, "cannot have two consecutive dots"),
        (name.endswith(".lock"), "cannot end with .lock"),
        (len(name.encode()) > MAX_REF_BYTES, f"cannot be longer than {MAX_REF_BYTES} bytes"),
    ):
        if wrong:
            raise InvalidRefError(f"Ref is invalid: {name!r}: Ref {complaint}", ref=name)
    return name


def check_branch_name(name: str) -> str:
    """Return the name if a branch may have it, else raise InvalidRefError saying why not."""
    for wrong, complaint in (
        (not name, "Branch name cannot be empty"),
        (name == MAIN, f'"{MAIN}" is reserved for the default branch; use a different branch name'),
        (name.startswith("/") or name.endswith("/"), "Branch name cannot start or end with a '/'"),
        ("//" in name, "Branch name cannot contain consecutive '/'"),
        (".." in name or "\\" in name, "Branch name cannot contain '..' or '\\'"),
        (name.endswith(".lock"), "Branch name cannot end with '.lock'"),
        (len(name.encode()) > MAX_REF_BYTES, f"Branch name cannot be longer than {MAX_REF_BYTES} bytes"),
    ):
        if wrong:
            raise InvalidRefError(f"Ref is invalid: {name!r}: {complaint}", ref=name)
    for segment in name.split("/"):
        if segment == "." or not _SEGMENT.fullmatch(segment):
            raise InvalidRefError(
                f"Ref is invalid: Branch segment {segment!r} contains invalid characters. "
                "Only alphanumeric, '.', '-', '_' are allowed.",
                ref=name,
            )
    return name


# ------------------------------------------------------------------------------------------------------------ times


def format_time(nanoseconds: int) -> str:
    """Nanoseconds since 1970 -> RFC 3339 in UTC, such as `2026-11-21T12:01:16.087970214Z`."""
    seconds, nanos = divmod(nanoseconds, 1_000_000_000)
    whole = datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    if nanos == 0:
        return f"{whole}Z"
    # Other writers print as few groups of three digits as the value needs.
    digits = f"{nanos:09d}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f"{whole}.{digits}Z"


def parse_time(text: str) -> int:
    """Inverse of `format_time`, any zone offset allowed. Raises ValueError for other text."""
    matched = _TIME.fullmatch(text)
    if matched is None:
        raise ValueError(f"no RFC 3339 time: {text[:50]!r}")
    whole, fraction, zone = matched.groups()
    moment = datetime.fromisoformat(whole.upper() + ("+00:00" if zone in "Zz" else zone))
    seconds = (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(seconds=1)
    return seconds * 1_000_000_000 + int((fraction or "").ljust(9, "0"))


_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


# ------------------------------------------------------------------------------------------------------------- JSON


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode()


def _load(data: bytes | memoryview, path: str | None) -> dict[str, Any]:
    try:
        value = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"malformed JSON: {path or 'no path'}: {error}", path=path) from error
    if not isinstance(value, dict):
        raise CorruptFileError(f"not a JSON object: {path or 'no path'}", path=path, expected="an object")
    return value


def _get(value: Mapping[str, Any], key: str, kind: type, path: str | None) -> Any:
    found = _get_optional(value, key, kind, path)
    if found is None:
        raise CorruptFileError(f"missing field `{key}`: {path or 'no path'}", path=path, expected=key)
    return found


def _branch(value: Mapping[str, Any], key: str, path: str | None) -> str | None:
    """The name of a branch, None for the main one: writers leave it out, others may call it by its name."""
    name = _get_optional(value, key, str, path)
    return None if name == MAIN else name


def _get_optional(value: Mapping[str, Any], key: str, kind: type, path: str | None) -> Any:
    found: Any = value.get(key)
    if found is None:
        return None
    suits = isinstance(found, kind) and not isinstance(found, bool)
    if not suits or (isinstance(found, int) and not 0 <= found <= MAX_U64):
        raise CorruptFileError(
            f"field `{key}` is no {kind.__name__} in range: {path or 'no path'}", path=path, expected=kind.__name__
        )
    return found


def _metadata(value: Mapping[str, Any], path: str | None) -> dict[str, str]:
    metadata = _get_optional(value, "metadata", dict, path) or {}
    if not all(isinstance(text, str) for text in metadata.values()):
        raise CorruptFileError(f"field `metadata` holds more than text: {path or 'no path'}", path=path)
    return metadata
