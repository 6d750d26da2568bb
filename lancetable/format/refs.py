"""Tags and branches: the JSON files below `_refs`, and the rules for their names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, ClassVar, Final

from lancetable.errors import CorruptFileError, InvalidRefError

if TYPE_CHECKING:
    from typing_extensions import Self

MAIN: Final = "main"
MAX_REF_BYTES: Final = 240  # leaves room for ".json" and a temporary suffix within the limits of file systems
MAX_U64: Final = 2**64 - 1

_SEGMENT: Final = re.compile(r"[\w.\-]+")


class _RefFile:
    """Base of the contents of a JSON file, whose keys are written in the order of `keys`."""

    __slots__ = ()
    keys: ClassVar[Mapping[str, tuple[str, type, bool]]]  # key -> (attribute, type, whether the key is required)

    def to_json(self) -> bytes:
        """Serialize the file, with the keys in the order of other writers."""
        values = {key: getattr(self, name) for key, (name, _, _) in self.keys.items()}
        if "identifier" in values:
            values["identifier"] = {"version_mapping": values["identifier"]}
        return json.dumps(values, indent=2, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes | memoryview, path: str | None = None) -> Self:
        """Parse a file. Raises CorruptFileError, with `path`, if it is malformed."""
        try:
            items = json.loads(bytes(data))
        except (ValueError, RecursionError) as error:
            raise CorruptFileError(f"malformed JSON: {error}", path=path) from error
        if not isinstance(items, dict):
            raise CorruptFileError("not a JSON object", path=path)
        values = {}
        for key, (name, kind, is_required) in cls.keys.items():
            value = items.get(key)
            if value is None and is_required:
                raise CorruptFileError(f"missing field `{key}`", path=path)
            has_type = value is None or (isinstance(value, kind) and not isinstance(value, bool))
            if not has_type or (isinstance(value, int) and not 0 <= value <= MAX_U64):
                raise CorruptFileError(
                    f"field `{key}` has a wrong type or is out of range", kind.__name__, value, path=path
                )
            values[name] = _CONVERSIONS[name](value, path) if name in _CONVERSIONS else value
        return cls(**values)


@dataclass(frozen=True, slots=True)
class TagContents(_RefFile):
    """A tag: a name for one version.

    Times are strings (RFC 3339, nanoseconds, UTC); older writers omit them.
    """

    keys: ClassVar = {
        "branch": ("branch", str, False),
        "version": ("version", int, True),
        "createdAt": ("created_at", str, False),
        "updatedAt": ("updated_at", str, False),
        "manifestSize": ("manifest_size_bytes", int, True),
        "metadata": ("metadata", dict, False),
    }
    version: int
    manifest_size_bytes: int
    branch: str | None = None  # None: main
    created_at: str | None = None
    updated_at: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class BranchContents(_RefFile):
    """A branch and its origin. `lineage` lists (parent version, 32 hex digits), starting at the main branch."""

    keys: ClassVar = {
        "parentBranch": ("parent_branch", str, False),
        "identifier": ("lineage", dict, False),
        "parentVersion": ("parent_version", int, True),
        "createAt": ("create_at_seconds", int, True),
        "manifestSize": ("manifest_size_bytes", int, True),
        "metadata": ("metadata", dict, False),
    }
    parent_version: int
    create_at_seconds: int
    manifest_size_bytes: int
    parent_branch: str | None = None  # None: main
    lineage: tuple[tuple[int, str], ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)


def _branch(name: str | None, path: str | None) -> str | None:
    """Return the name of a branch; None for the main branch, which writers omit or name "main"."""
    return None if name == MAIN else name


def _lineage(identifier: Mapping[str, Any] | None, path: str | None) -> tuple[tuple[int, str], ...]:
    steps = (identifier or {}).get("version_mapping") or []
    try:
        return tuple((int(version), str(step_id)) for version, step_id in steps)
    except (TypeError, ValueError, OverflowError) as error:
        raise CorruptFileError("malformed branch lineage", path=path) from error


def _metadata(metadata: Mapping[str, Any] | None, path: str | None) -> Mapping[str, str]:
    if not all(isinstance(string, str) for string in (metadata or {}).values()):
        raise CorruptFileError("field `metadata` has values that are not strings", path=path)
    return metadata or {}


_CONVERSIONS: Final[Mapping[str, Callable[[Any, str | None], Any]]] = {
    "branch": _branch,
    "parent_branch": _branch,
    "lineage": _lineage,
    "metadata": _metadata,
}


# ------------------------------------------------------------------------------------------------------------ names


def check_tag_name(name: str) -> str:
    """Return the name if it is valid for a tag; otherwise raise InvalidRefError with the reason."""
    if not name:
        raise InvalidRefError("Ref is invalid: Ref cannot be empty", ref=name)
    if not _SEGMENT.fullmatch(name):
        raise InvalidRefError(
            f"Ref is invalid: {name!r}: Ref characters must be either alphanumeric, '.', '-' or '_'", ref=name
        )
    for invalid, reason in (
        (name.startswith("."), "cannot begin with a dot"),
        (name.endswith("."), "cannot end with a dot"),
        (".." in name, "cannot have two consecutive dots"),
        (name.endswith(".lock"), "cannot end with .lock"),
        (len(name.encode()) > MAX_REF_BYTES, f"cannot be longer than {MAX_REF_BYTES} bytes"),
    ):
        if invalid:
            raise InvalidRefError(f"Ref is invalid: {name!r}: Ref {reason}", ref=name)
    return name


def check_branch_name(name: str) -> str:
    """Return the name if it is valid for a branch; otherwise raise InvalidRefError with the reason."""
    for invalid, reason in (
        (not name, "Branch name cannot be empty"),
        (name == MAIN, f'"{MAIN}" is reserved for the default branch; use a different branch name'),
        (name.startswith("/") or name.endswith("/"), "Branch name cannot start or end with a '/'"),
        ("//" in name, "Branch name cannot contain consecutive '/'"),
        (".." in name or "\\" in name, "Branch name cannot contain '..' or '\\'"),
        (name.endswith(".lock"), "Branch name cannot end with '.lock'"),
        (len(name.encode()) > MAX_REF_BYTES, f"Branch name cannot be longer than {MAX_REF_BYTES} bytes"),
    ):
        if invalid:
            raise InvalidRefError(f"Ref is invalid: {name!r}: {reason}", ref=name)
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
    """Format nanoseconds since 1970 as RFC 3339 in UTC, such as `2026-11-21T12:01:16.087970214Z`."""
    seconds, nanos = divmod(nanoseconds, 1_000_000_000)
    whole = datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    if nanos == 0:
        return f"{whole}Z"
    # Other writers omit trailing groups of three zeros.
    digits = f"{nanos:09d}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f"{whole}.{digits}Z"


def parse_time(string: str) -> int:
    """Parse an RFC 3339 time with any zone offset to nanoseconds since 1970. Raises ValueError for other strings."""
    match = _TIME.fullmatch(string)
    if match is None:
        raise ValueError(f"not an RFC 3339 time: {string[:50]!r}")
    whole, fraction, zone = match.groups()
    time = datetime.fromisoformat(whole.upper() + ("+00:00" if zone in "Zz" else zone))
    seconds = (time - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(seconds=1)
    return seconds * 1_000_000_000 + int((fraction or "").ljust(9, "0"))


_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
