"""Names of manifests below `_versions`, in two naming schemes.

{2^64-1 - version, 20 digits}.manifest    V2
{version}.manifest                        V1
d{version}.manifest                       detached: not part of the history
latest_version_hint.json                  a hint of the newest version, which may be missing or wrong
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from lancetable.format.paths import VERSIONS_DIR, join, parse_decimal

HINT_NAME: Final = "latest_version_hint.json"
MAX_VERSION: Final = 2**64 - 1
DETACHED_BIT: Final = 1 << 63

_MANIFEST_SUFFIX: Final = ".manifest"
_V2_DIGITS: Final = 20


class ManifestNamingScheme(Enum):
    """Naming scheme of manifests.

    V1 names contain the version. V2 names contain its complement, so that a listing returns the newest version first.
    """

    V1 = 1
    V2 = 2


@dataclass(frozen=True, slots=True)
class ManifestLocation:
    """Path, size and naming scheme of the manifest of one version."""

    version: int
    path: str
    size_bytes: int | None
    naming: ManifestNamingScheme


def manifest_name(version: int, naming: ManifestNamingScheme) -> str:
    """Return the file name of a version's manifest below `_versions`."""
    if version & DETACHED_BIT:
        return f"d{version}{_MANIFEST_SUFFIX}"
    if naming is ManifestNamingScheme.V2:
        return f"{MAX_VERSION - version:020d}{_MANIFEST_SUFFIX}"
    return f"{version}{_MANIFEST_SUFFIX}"


def manifest_path(base: str, version: int, naming: ManifestNamingScheme) -> str:
    """Return the path of a version's manifest."""
    return join(base, f"{VERSIONS_DIR}/{manifest_name(version, naming)}")


def parse_manifest_name(name: str) -> tuple[int, ManifestNamingScheme] | None:
    """Parse a file name below `_versions` into (version, naming); return None if it is not a manifest.

    A detached version has bit 63 set (see `is_detached`); its naming is reported as V2.
    """
    stem, dot, suffix = name.partition(".")
    if not dot or suffix != "manifest":
        return None
    if stem.startswith("d"):
        version = parse_decimal(stem[1:])
        return None if version is None or not version & DETACHED_BIT else (version, ManifestNamingScheme.V2)
    number = parse_decimal(stem)
    if number is None:
        return None
    if len(stem) == _V2_DIGITS:
        return MAX_VERSION - number, ManifestNamingScheme.V2
    return number, ManifestNamingScheme.V1


def is_detached(version: int) -> bool:
    """Return True if the version is detached, which means not part of the table's history."""
    return bool(version & DETACHED_BIT)


def hint_path(base: str) -> str:
    """Return the path of the version hint, a best-effort record of the newest version."""
    return join(base, f"{VERSIONS_DIR}/{HINT_NAME}")
