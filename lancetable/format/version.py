"""Versions of the data file format, and their representation in data files and manifests."""

from __future__ import annotations

from enum import Enum

from lancetable.errors import CorruptFileError, InvalidInputError, UnsupportedFeatureError


class FileVersion(Enum):
    """A version of the data file format.

    `number` is the string that manifests and users write. `footer_pair` is stored at the end of a data file and
    `manifest_pair` in the manifest's entry for the file. The two pairs differ for 2.0, whose footer stores 0.3.
    """

    LEGACY = ("0.1", (0, 2), (0, 2))
    V2_0 = ("2.0", (0, 3), (2, 0))
    V2_1 = ("2.1", (2, 1), (2, 1))
    V2_2 = ("2.2", (2, 2), (2, 2))

    number: str
    footer_pair: tuple[int, int]
    manifest_pair: tuple[int, int]

    def __new__(cls, number: str, footer_pair: tuple[int, int], manifest_pair: tuple[int, int]) -> FileVersion:
        member = object.__new__(cls)
        member._value_ = number
        # Plain attributes, because `.value` is a descriptor and slow on hot paths.
        member.number = number
        member.footer_pair = footer_pair
        member.manifest_pair = manifest_pair
        return member

    def __str__(self) -> str:
        return self.number

    @property
    def is_legacy(self) -> bool:
        """True for the 0.1 format, which has batches and a page table instead of pages per column."""
        return self is FileVersion.LEGACY

    @classmethod
    def parse(cls, name: str) -> FileVersion:
        """Return the version for a user-supplied name: a number, "legacy" or "stable".

        Raises InvalidInputError for unknown names and UnsupportedFeatureError for unreleased versions.
        """
        version = _NAMES.get(name.lower())
        if version is not None:
            return version
        if name.lower() in _UNRELEASED:
            raise UnsupportedFeatureError(
                f'data file version {name!r} is not released, so that its format may still change ("next" is 2.3);'
                f' choose {STABLE_VERSION} ("stable") or older',
                feature=f"data file version {name}",
            )
        known = ", ".join(version.number for version in cls)
        raise InvalidInputError(f"Unknown Lance storage version: {name!r}; use {known}, legacy or stable")

    @classmethod
    def from_number(cls, number: str, path: str | None = None) -> FileVersion:
        """Return the version for the number in a manifest, which cannot be a name such as "stable".

        Raises UnsupportedFeatureError for newer versions and CorruptFileError for unknown ones.
        """
        version = _NUMBERS.get(number)
        if version is not None:
            return version
        if number in _UNRELEASED or _is_newer(number):
            raise UnsupportedFeatureError(
                f"the table has data format {number[:20]!r}; the newest supported version is {STABLE_VERSION}",
                feature=f"data file version {number[:20]}",
                path=path,
            )
        raise CorruptFileError("unknown data format version", "a version number", repr(number[:20]), path=path)

    @classmethod
    def from_footer(cls, major: int, minor: int, path: str | None = None) -> FileVersion:
        """Return the version of a data file from the two numbers at its end.

        Raises UnsupportedFeatureError for newer versions and CorruptFileError for unknown ones.
        """
        return _from_pair(_BY_FOOTER, major, minor, path)

    @classmethod
    def from_manifest_pair(cls, major: int, minor: int, path: str | None = None) -> FileVersion:
        """Return the version of a data file from the two numbers in its manifest entry.

        Raises UnsupportedFeatureError for newer versions and CorruptFileError for unknown ones.
        """
        return _from_pair(_BY_MANIFEST, major, minor, path)


_UNRELEASED = frozenset({"next", "2.3"})

STABLE_VERSION = FileVersion.V2_2  # the default of new tables and files

_NUMBERS = {version.number: version for version in FileVersion}
_NAMES = _NUMBERS | {"legacy": FileVersion.LEGACY, "0.3": FileVersion.V2_0, "stable": STABLE_VERSION}

# Early writers also used other pairs, which are accepted but never written.
_BY_FOOTER = {version.footer_pair: version for version in FileVersion} | {
    (0, 0): FileVersion.LEGACY,
    (0, 1): FileVersion.LEGACY,
    (2, 0): FileVersion.V2_0,
}
_BY_MANIFEST = {version.manifest_pair: version for version in FileVersion} | {
    (0, 0): FileVersion.LEGACY,
    (0, 1): FileVersion.LEGACY,
    (0, 3): FileVersion.V2_0,
}


def _from_pair(table: dict[tuple[int, int], FileVersion], major: int, minor: int, path: str | None) -> FileVersion:
    version = table.get((major, minor))
    if version is not None:
        return version
    if (major, minor) > STABLE_VERSION.footer_pair:
        raise UnsupportedFeatureError(
            f"data file version {major}.{minor} is newer than the supported {STABLE_VERSION}: {path or 'unnamed file'}",
            feature=f"data file version {major}.{minor}",
            path=path,
        )
    raise CorruptFileError(f"unknown data file version {major}.{minor}", "a known version pair", path=path)


def _is_newer(number: str) -> bool:
    major, dot, minor = number.partition(".")
    if not (dot and major.isdecimal() and minor.isdecimal() and len(number) < 20):
        return False
    return (int(major), int(minor)) > STABLE_VERSION.manifest_pair
