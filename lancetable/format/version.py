"""Versions of the data file format, and the number pairs that stand for them in files and manifests."""

from __future__ import annotations

from enum import Enum

from lancetable.errors import CorruptFileError, InvalidInputError, UnsupportedFeatureError

__all__ = ["DEFAULT_VERSION", "STABLE_VERSION", "FileVersion"]


class FileVersion(Enum):
    """A version of the data file format.

    `number` is what manifests and users write; `footer_pair` stands at the end of a data file, `manifest_pair` in a
    manifest's record of that file. The two differ for 2.0, whose footer still says 0.3.
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
        # Plain attributes: `.value` goes through a descriptor and is slow on hot paths.
        member.number = number
        member.footer_pair = footer_pair
        member.manifest_pair = manifest_pair
        return member

    def __str__(self) -> str:
        return self.number

    @property
    def is_legacy(self) -> bool:
        """Whether this is the 0.1 format, which has batches and a page table instead of pages per column."""
        return self is FileVersion.LEGACY

    @classmethod
    def parse(cls, text: str) -> FileVersion:
        """The version a user names: a number, "legacy" or "stable".

        Raises InvalidInputError for names nobody knows and UnsupportedFeatureError for versions still in the making.
        """
        version = _NAMES.get(text.lower())
        if version is not None:
            return version
        if text.lower() in _UNRELEASED:
            raise UnsupportedFeatureError(
                f"data file version {text!r} is still in the making; the newest supported one is {STABLE_VERSION}",
                feature=f"data file version {text}",
            )
        known = ", ".join(version.number for version in cls)
        raise InvalidInputError(f"Unknown Lance storage version: {text!r}; known are {known}, legacy and stable")

    @classmethod
    def from_number(cls, number: str, path: str | None = None) -> FileVersion:
        """The version a manifest states; names such as "stable" are not allowed there."""
        version = _NUMBERS.get(number)
        if version is not None:
            return version
        if number in _UNRELEASED or _is_newer(number):
            raise UnsupportedFeatureError(
                f"the table is in data format {number[:20]!r}; the newest supported one is {STABLE_VERSION}",
                feature=f"data file version {number[:20]}",
                path=path,
            )
        raise CorruptFileError(
            f"unknown data format version {number[:20]!r}", path=path, expected="a version number", found=number[:20]
        )

    @classmethod
    def from_footer(cls, major: int, minor: int, path: str | None = None) -> FileVersion:
        """The version of the file that ends in these two numbers."""
        return _of_pair(_BY_FOOTER, major, minor, path)

    @classmethod
    def from_manifest_pair(cls, major: int, minor: int, path: str | None = None) -> FileVersion:
        """The version of a data file whose manifest entry has these two numbers."""
        return _of_pair(_BY_MANIFEST, major, minor, path)


_UNRELEASED = frozenset({"next", "2.3"})

STABLE_VERSION = FileVersion.V2_2
# Of new tables. Readers of 2.1 go back further than those of the stable version, which pylance writes by default.
DEFAULT_VERSION = FileVersion.V2_1

_NUMBERS = {version.number: version for version in FileVersion}
_NAMES = _NUMBERS | {"legacy": FileVersion.LEGACY, "0.3": FileVersion.V2_0, "stable": STABLE_VERSION}

# Early writers put other pairs; they are read, never written.
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


def _of_pair(table: dict[tuple[int, int], FileVersion], major: int, minor: int, path: str | None) -> FileVersion:
    version = table.get((major, minor))
    if version is not None:
        return version
    if (major, minor) > STABLE_VERSION.footer_pair:
        raise UnsupportedFeatureError(
            f"data file version {major}.{minor} is newer than the supported {STABLE_VERSION}: {path or 'unnamed file'}",
            feature=f"data file version {major}.{minor}",
            path=path,
        )
    raise CorruptFileError(
        f"unknown data file version {major}.{minor}: {path or 'unnamed file'}",
        path=path,
        expected="a known version pair",
        found=(major, minor),
    )


def _is_newer(number: str) -> bool:
    major, dot, minor = number.partition(".")
    if not (dot and major.isdecimal() and minor.isdecimal() and len(number) < 20):
        return False
    return (int(major), int(minor)) > STABLE_VERSION.manifest_pair
