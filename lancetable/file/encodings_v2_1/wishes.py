"""Encoding options in the metadata of fields, for the writer of 2.1 and 2.2 files.

    lance-encoding:compression            zstd, lz4, fsst, none         compression-level            of zstd
    lance-encoding:structural-encoding    miniblock, fullzip            bss                          on, off, auto
    lance-encoding:rle-threshold          share of the values           minichunk-size               bytes
    lance-encoding:dict-divisor           values per distinct value     dict-size-ratio              share of the bytes
    lance-encoding:dict-values-compression, dict-values-compression-level

Source: protos/encodings_v2_1.proto and the files that pylance writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["NO_OPTIONS", "EncodingOptions", "zstd_level"]

_DEFAULT_ZSTD_LEVEL: Final = 3
_PREFIX: Final = "lance-encoding:"


@dataclass(frozen=True, slots=True)
class EncodingOptions:
    """The encoding options of a field; unknown keys and invalid values are ignored, as other writers do."""

    compression: str = ""  # zstd, lz4, fsst, none
    level: int | None = None
    structure: str = ""  # miniblock, fullzip
    byte_streams: str = "auto"  # on, off, auto
    run_share: float | None = None  # use run lengths only if there are fewer runs than this share of the values
    dictionary_divisor: float = 2.0  # use a dictionary only for fewer distinct values than values divided by this
    dictionary_ratio: float = 0.8  # and only if it is smaller than this share of the bytes without it
    dictionary_compression: str | None = None
    dictionary_level: int | None = None
    chunk_bytes: int | None = None

    @classmethod
    def of(cls, metadata: Mapping[str, bytes]) -> EncodingOptions:
        """Parse the `lance-encoding:` keys of field metadata."""
        if not metadata:
            return NO_OPTIONS
        options = {
            key[len(_PREFIX) :]: value.decode("utf-8", "replace").strip().lower()
            for key, value in metadata.items()
            if key.startswith(_PREFIX)
        }
        if not options:
            return NO_OPTIONS
        return cls(
            compression=_one_of(options.get("compression"), ("zstd", "lz4", "fsst", "none"), ""),
            level=_parse_int(options.get("compression-level")),
            structure=_one_of(options.get("structural-encoding"), ("miniblock", "fullzip"), ""),
            byte_streams=_one_of(options.get("bss"), ("on", "off", "auto"), "auto"),
            run_share=_parse_positive(options.get("rle-threshold")),
            dictionary_divisor=_parse_positive(options.get("dict-divisor")) or 2.0,
            dictionary_ratio=_parse_positive(options.get("dict-size-ratio")) or 0.8,
            dictionary_compression=_one_of(options.get("dict-values-compression"), ("zstd", "lz4", "none"), None),
            dictionary_level=_parse_int(options.get("dict-values-compression-level")),
            chunk_bytes=_parse_int(options.get("minichunk-size")),
        )

    @property
    def general(self) -> tuple[str, int | None] | None:
        """Scheme and level of general compression; None if it is not requested."""
        if self.compression not in ("zstd", "lz4"):
            return None
        return self.compression, zstd_level(self.compression, self.level)


NO_OPTIONS: Final = EncodingOptions()


def _one_of(value: str | None, known: tuple[str, ...], default: Any) -> Any:
    return value if value in known else default


def _parse_int(value: str | None) -> int | None:
    return int(value) if value and value.lstrip("-").isdecimal() and len(value) < 10 else None


def _parse_positive(value: str | None) -> float | None:
    try:
        number = float(value) if value else 0.0
    except ValueError:
        return None
    return number if 0 < number < 1e9 else None


def zstd_level(scheme: str, level: int | None) -> int | None:
    """Return the compression level for a scheme: `level` clamped to zstd's range, or its default; None for others."""
    return None if scheme != "zstd" else _DEFAULT_ZSTD_LEVEL if level is None else min(max(level, -7), 22)
