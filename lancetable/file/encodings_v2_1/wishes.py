"""What the metadata of a field asks of the writer of 2.1 and 2.2 files.

    lance-encoding:compression            zstd, lz4, fsst, none         compression-level            of zstd
    lance-encoding:structural-encoding    miniblock, fullzip            bss                          on, off, auto
    lance-encoding:rle-threshold          share of the values           minichunk-size               bytes
    lance-encoding:dict-divisor           values for a distinct one     dict-size-ratio              share of the bytes
    lance-encoding:dict-values-compression, dict-values-compression-level

Source: protos/encodings_v2_1.proto and the files that pylance writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["NO_WISHES", "Wishes", "zstd_level"]

_DEFAULT_ZSTD_LEVEL: Final = 3
_PREFIX: Final = "lance-encoding:"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the metadata of a field asks for; what is not understood is passed over, as other writers do."""

    compression: str = ""  # zstd, lz4, fsst, none
    level: int | None = None
    structure: str = ""  # miniblock, fullzip
    byte_streams: str = "auto"  # on, off, auto
    run_share: float | None = None  # run lengths only if fewer runs than this share of the values
    dictionary_divisor: float = 2.0  # a dictionary only if fewer distinct values than values divided by this
    dictionary_ratio: float = 0.8  # and only if this much smaller
    dictionary_compression: str | None = None
    dictionary_level: int | None = None
    chunk_bytes: int | None = None

    @classmethod
    def of(cls, metadata: Mapping[str, bytes]) -> Wishes:
        """Read the `lance-encoding:` keys."""
        if not metadata:
            return NO_WISHES
        found = {
            key[len(_PREFIX) :]: value.decode("utf-8", "replace").strip().lower()
            for key, value in metadata.items()
            if key.startswith(_PREFIX)
        }
        if not found:
            return NO_WISHES
        return cls(
            compression=_one_of(found.get("compression"), ("zstd", "lz4", "fsst", "none"), ""),
            level=_whole_number(found.get("compression-level")),
            structure=_one_of(found.get("structural-encoding"), ("miniblock", "fullzip"), ""),
            byte_streams=_one_of(found.get("bss"), ("on", "off", "auto"), "auto"),
            run_share=_number(found.get("rle-threshold")),
            dictionary_divisor=_number(found.get("dict-divisor")) or 2.0,
            dictionary_ratio=_number(found.get("dict-size-ratio")) or 0.8,
            dictionary_compression=_one_of(found.get("dict-values-compression"), ("zstd", "lz4", "none"), None),
            dictionary_level=_whole_number(found.get("dict-values-compression-level")),
            chunk_bytes=_whole_number(found.get("minichunk-size")),
        )

    @property
    def general(self) -> tuple[str, int | None] | None:
        """Scheme and level of general compression, if there is to be any."""
        if self.compression not in ("zstd", "lz4"):
            return None
        return self.compression, zstd_level(self.compression, self.level)


NO_WISHES: Final = Wishes()


def _one_of(text: str | None, known: tuple[str, ...], otherwise: Any) -> Any:
    return text if text in known else otherwise


def _whole_number(text: str | None) -> int | None:
    return int(text) if text and text.lstrip("-").isdecimal() and len(text) < 10 else None


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text else 0.0
    except ValueError:
        return None
    return number if 0 < number < 1e9 else None


def zstd_level(scheme: str, level: int | None) -> int | None:
    """The level of a scheme of general compression that a field asks for; None for schemes without levels."""
    return None if scheme != "zstd" else _DEFAULT_ZSTD_LEVEL if level is None else min(max(level, -7), 22)
