"""Sizes of files of version 2.1 and 2.2 compared with those of pylance for the same data, without statistics.

Prints a table. The exit code is 1 if the geometric mean is above 1.0 or a shape is above 1.15; files below 1 MiB do not
count.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import lance.file
import numpy as np
import pyarrow as pa

import lancetable.file
from lancetable.file import kernels

WORST, MEAN = 1.15, 1.0
MIN_BYTES = 1 << 20


def lists_of(rng: np.random.Generator, values: pa.Array, mean: int) -> pa.Array:
    """Return `values` in lists of 0 to 2 * mean items."""
    ends = np.cumsum(rng.integers(0, 2 * mean + 1, len(values)))
    ends = np.concatenate([[0], ends[ends < len(values)], [len(values)]])
    return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), values)


def shapes(n: int) -> dict[str, Callable[[], pa.Array]]:
    """Return columns of about `n` values by name."""
    rng = np.random.default_rng(11)
    words = [
        f"{a}-{b}" for a in ("red", "green", "blue", "black") for b in ("car", "bicycle", "boat", "train", "plane")
    ]

    def nulls(share: float) -> pa.Array:
        return pa.array(rng.integers(0, 2**40, n), mask=rng.random(n) < share)

    def text(low: int, high: int, count: int) -> pa.Array:
        letters = np.frombuffer("".join(words).encode(), np.uint8)
        return pa.array(
            [letters[rng.integers(0, len(letters), k)].tobytes().decode() for k in rng.integers(low, high, count)]
        )

    def urls() -> pa.Array:
        return pa.array(
            [
                f"https://www.example.org/{words[k % 20]}/{k}/index.html?user={k * 7919 % 10007}"
                for k in rng.integers(0, 10**6, n // 4)
            ]
        )

    def documents() -> pa.Array:
        return pa.array(
            [
                f'{{"id": {k}, "kind": "{words[k % 20]}", "price": {k % 977 / 100}, "tags": ["a", "b{k % 7}"]}}'
                for k in rng.integers(0, 10**6, n // 4)
            ]
        )

    def uuids() -> pa.Array:
        return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), n // 2, [None, pa.py_buffer(rng.bytes(n // 2 * 16))])

    def uuid_texts() -> pa.Array:
        return pa.array(
            [
                h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
                for h in (rng.bytes(16).hex() for _ in range(n // 4))
            ]
        )

    def long_texts(size: int, count: int) -> pa.Array:
        picks = np.array(words)
        return pa.array([" ".join(picks[rng.integers(0, 20, size // 8)]) for _ in range(count)])

    return {
        "int64 sorted": lambda: pa.array(np.cumsum(rng.integers(0, 5, n))),
        "int64 0 to 99": lambda: pa.array(rng.integers(0, 100, n)),
        "int64 signed small": lambda: pa.array(rng.integers(-100, 100, n)),
        "int64 any": lambda: pa.array(rng.integers(-(2**62), 2**62, n)),
        "int64 40 bits": lambda: pa.array(rng.integers(0, 2**40, n)),
        "int64 5 values of 60 bits": lambda: pa.array(rng.integers(0, 2**60, 5)[rng.integers(0, 5, n)]),
        "int64 2000 values of 60 bits": lambda: pa.array(rng.integers(0, 2**60, 2000)[rng.integers(0, 2000, n)]),
        "int32 any": lambda: pa.array(rng.integers(-(2**31), 2**31, 2 * n).astype(np.int32)),
        "int32 0 to 9": lambda: pa.array(rng.integers(0, 10, 2 * n).astype(np.int32)),
        "int16 any": lambda: pa.array(rng.integers(-(2**15), 2**15, 4 * n).astype(np.int16)),
        "int8 0 to 3": lambda: pa.array(rng.integers(0, 4, 8 * n).astype(np.int8)),
        "uint8 any": lambda: pa.array(rng.integers(0, 256, 8 * n).astype(np.uint8)),
        "int64 runs of 50": lambda: pa.array(np.repeat(rng.integers(0, 2**50, n // 50), rng.integers(1, 100, n // 50))),
        "int32 constant": lambda: pa.array(np.full(4 * n, 7, np.int32)),
        "float64 normal": lambda: pa.array(rng.normal(size=n)),
        "float64 two decimals": lambda: pa.array(rng.integers(0, 100_000, n) / 100),
        "float32 normal": lambda: pa.array(rng.normal(size=2 * n).astype(np.float32)),
        "float16": lambda: pa.array(rng.normal(size=4 * n).astype(np.float16)),
        "bool": lambda: pa.array(rng.random(40 * n) < 0.5),
        "bool 20% null": lambda: pa.array(rng.random(20 * n) < 0.5, mask=rng.random(20 * n) < 0.2),
        "timestamp": lambda: pa.array(rng.integers(15 * 10**14, 18 * 10**14, n)).cast(pa.timestamp("us")),
        "timestamp sorted": lambda: pa.array(15 * 10**14 + np.cumsum(rng.integers(0, 10**6, n))).cast(
            pa.timestamp("us")
        ),
        "date32": lambda: pa.array(rng.integers(10_000, 20_000, 4 * n).astype(np.int32)).cast(pa.date32()),
        "decimal128": lambda: pa.array(rng.integers(0, 10**6, n)).cast(pa.decimal128(19, 0)).cast(pa.decimal128(20, 0)),
        "int64 1% null": lambda: nulls(0.01),
        "int64 50% null": lambda: nulls(0.5),
        "int64 99% null": lambda: nulls(0.99),
        "string few": lambda: pa.array(words).take(pa.array(rng.integers(0, 20, 2 * n))),
        "string 5000 words": lambda: text(4, 12, 5000).take(pa.array(rng.integers(0, 5000, n))),
        "string digits": lambda: pa.array(rng.integers(0, 2**62, n)).cast(pa.string()),
        "string words": lambda: text(1, 30, n // 2),
        "string urls": urls,
        "string json": documents,
        "string uuid": uuid_texts,
        "string 50% null": lambda: pa.array([None if k % 2 else f"user-{k}" for k in rng.integers(0, 10**7, n)]),
        "string 99% null": lambda: pa.array(
            [f"user-{k}" if k % 100 == 0 else None for k in rng.integers(0, 10**7, 8 * n)]
        ),
        "string 300 bytes": lambda: text(280, 320, n // 40),
        "string 4 KiB": lambda: long_texts(4096, n // 400),
        "string 40 KiB": lambda: long_texts(40_000, n // 4000),
        "binary random": lambda: pa.array([rng.bytes(int(k)) for k in rng.integers(0, 60, n // 4)]),
        "uuid": uuids,
        "list<int32>": lambda: lists_of(rng, pa.array(rng.integers(0, 1000, 2 * n).astype(np.int32)), 4),
        "list<string>": lambda: lists_of(rng, text(2, 14, n), 3),
        "list<list<int16>>": lambda: lists_of(
            rng, lists_of(rng, pa.array(rng.integers(0, 999, 4 * n).astype(np.int16)), 3), 3
        ),
        "struct": lambda: pa.StructArray.from_arrays(
            [pa.array(rng.normal(size=n)), pa.array(rng.integers(0, 99, n), mask=rng.random(n) < 0.1)], ["x", "y"]
        ),
        "list<struct>": lambda: lists_of(
            rng,
            pa.StructArray.from_arrays([pa.array(rng.normal(size=n)), pa.array(rng.integers(0, 99, n))], ["x", "y"]),
            3,
        ),
        "vector 768": lambda: pa.FixedSizeListArray.from_arrays(
            pa.array(rng.normal(size=n // 400 * 768).astype(np.float32)), 768
        ),
        "vector 16": lambda: pa.FixedSizeListArray.from_arrays(
            pa.array(rng.normal(size=n // 8 * 16).astype(np.float32)), 16
        ),
        "dictionary": lambda: pa.array(words).take(pa.array(rng.integers(0, 20, 4 * n))).dictionary_encode(),
    }


def size(module: Any, path: str, table: pa.Table, version: str) -> int:
    with module.LanceFileWriter(path, table.schema, version=version) as writer:
        for batch in table.to_batches():
            writer.write_batch(batch)
    return os.path.getsize(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--versions", default="2.1,2.2")
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    options = parser.parse_args()
    print(f"kernels {'on' if kernels.NATIVE else 'off'}; bytes of lancetable, of pylance {lance.__version__}, ratio")
    bad = False
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "file.lance")
        for version in options.versions.split(","):
            ratios: dict[str, float] = {}
            for name, make in shapes(options.rows).items():
                if options.only not in name:
                    continue
                table = pa.table({"c": make()})
                ours = size(lancetable.file, path, table, version)
                theirs = size(lance.file, path, table, version)
                small = max(ours, theirs) < MIN_BYTES
                ratio = ours / theirs
                if not small:
                    ratios[name] = ratio
                mark = "  (small)" if small else "  <-- larger" if ratio > WORST else ""
                print(f"  {version}  {name:<30} {ours:>12,} {theirs:>12,} {ratio:>7.3f}{mark}", flush=True)
            if not ratios:
                continue
            mean, worst = statistics.geometric_mean(ratios.values()), max(ratios, key=lambda name: ratios[name])
            print(
                f"  {version}  geomean {mean:.3f}, worst {worst} {ratios[worst]:.3f}, {len(ratios)} shapes\n",
                flush=True,
            )
            bad |= mean > MEAN or ratios[worst] > WORST
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
