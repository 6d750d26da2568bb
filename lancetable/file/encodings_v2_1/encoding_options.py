"""Encoding options in the metadata of fields, for the writer of 2.1 and 2.2 files.

    lance-encoding:compression            zstd, lz4, fsst, none         compression-level            of zstd
    lance-encoding:structural-encoding    miniblock, fullzip            bss                          on, off, auto
    lance-encoding:rle-threshold          share of the values           minichunk-size               bytes
    lance-encoding:dict-divisor           values per distinct value     dict-size-ratio              share of the bytes
    lance-encoding:dict-values-compression, dict-values-compression-level

Source: protos/encodings_v2_1.proto and the files that pylance writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

_DEFAULT_ZSTD_LEVEL: Final = 3
_PREFIX: Final = "lance-encoding:"


@dataclass(frozen=True, slots=True)
class EncodingOptions:
    """Encoding options of a field. Unknown keys and invalid values are ignored, as in other writers."""

    compression: str = ""  # zstd, lz4, fsst, none
    level: int | None = None
    structure: str = ""  # miniblock, fullzip
    byte_streams: str = "auto"  # on, off, auto
    run_share: float | None = None  # use run lengths only if runs / values is less than this
    dictionary_divisor: float = 2.0  # use a dictionary only if values / distinct values is at least this
    dictionary_ratio: float = 0.8  # and only if it needs at most this share of the bytes without it
    dictionary_compression: str | None = None
    dictionary_level: int | None = None
    chunk_bytes: int | None = None

    @classmethod
    def of(cls, metadata: Mapping[str, bytes]) -> EncodingOptions:
        """Parse the `lance-encoding:` keys of field metadata."""
        options: dict[str, Any] = {}
        for key, value in metadata.items():
            if key.startswith(_PREFIX) and (known := _OPTIONS.get(key[len(_PREFIX) :])) is not None:
                name, parse = known
                parsed = parse(value.decode("utf-8", "replace").strip().lower())
                if parsed is not None:
                    options[name] = parsed
        return cls(**options) if options else NO_OPTIONS

    @property
    def general(self) -> tuple[str, int | None] | None:
        """Scheme and level of general compression; None if it is not requested."""
        if self.compression not in ("zstd", "lz4"):
            return None
        return self.compression, zstd_level(self.compression, self.level)


NO_OPTIONS: Final = EncodingOptions()


def _one_of(*known: str) -> Callable[[str], str | None]:
    return lambda value: value if value in known else None


def _parse_int(value: str) -> int | None:
    return int(value) if value.lstrip("-").isdecimal() and len(value) < 10 else None


def _parse_positive(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0 < number < 1e9 else None


_OPTIONS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "compression": ("compression", _one_of("zstd", "lz4", "fsst", "none")),
    "compression-level": ("level", _parse_int),
    "structural-encoding": ("structure", _one_of("miniblock", "fullzip")),
    "bss": ("byte_streams", _one_of("on", "off", "auto")),
    "rle-threshold": ("run_share", _parse_positive),
    "dict-divisor": ("dictionary_divisor", _parse_positive),
    "dict-size-ratio": ("dictionary_ratio", _parse_positive),
    "dict-values-compression": ("dictionary_compression", _one_of("zstd", "lz4", "none")),
    "dict-values-compression-level": ("dictionary_level", _parse_int),
    "minichunk-size": ("chunk_bytes", _parse_int),
}


def zstd_level(scheme: str, level: int | None) -> int | None:
    """Return the compression level for a scheme: `level` clamped to zstd's range, or its default; None for others."""
    return None if scheme != "zstd" else _DEFAULT_ZSTD_LEVEL if level is None else min(max(level, -7), 22)
