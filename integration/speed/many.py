"""Cost of many fragments and many versions, compared with pylance: open, count, plan, append, memory.

    many.py [--fragments 100000 ...] [--versions 1 10000] [--json]

Every figure is the best of a few, in a separate process for each library; CPU time is printed next to the wall clock,
which depends on other work on the machine. In the tables made here, all fragments refer to the same data file, so that
only the manifest is large.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

ROWS = pa.table({"id": pa.array(range(10), pa.int64()), "s": ["abcdefgh"] * 10})
LIBRARIES = ("lancetable", "lance")


def make_fragments(uri: str, count: int) -> None:
    """Create a table of `count` fragments that refer to the same data file, by writing its manifest directly."""
    import lancetable
    from lancetable.format.manifest_naming import ManifestNamingScheme, manifest_path
    from lancetable.table import manifest_files, transactions

    version = lancetable.write_dataset(ROWS, uri, data_storage_version="2.0").table_version
    made = transactions.read(version.store, version.base, version.file)
    assert made is not None
    message = version.manifest.message
    (first,) = message.fragments
    for number in range(1, count):
        message.fragments.add().CopyFrom(first)
        message.fragments[number].id = number
    message.max_fragment_id = count - 1
    packed = manifest_files.pack(message, made.to_bytes(), None)
    version.store.put(manifest_path(version.base, 1, ManifestNamingScheme.V2), packed)


def make_versions(uri: str, count: int) -> None:
    """Create a table with `count` versions of equal contents."""
    import lancetable
    from lancetable.format.manifest_naming import ManifestNamingScheme, manifest_path
    from lancetable.handlers.latest_version import write_hint
    from lancetable.table import manifest_files, transactions

    version = lancetable.write_dataset(ROWS, uri, data_storage_version="2.0").table_version
    made = transactions.read(version.store, version.base, version.file)
    assert made is not None
    message = version.manifest.message
    for number in range(2, count + 1):
        message.version = number
        packed = manifest_files.pack(message, made.to_bytes(), None)
        Path(f"/{manifest_path(version.base, number, ManifestNamingScheme.V2).lstrip('/')}").write_bytes(packed)
    write_hint(version.store, version.base, count)


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def best_ms(act: Callable[[], Any], repeats: int) -> dict[str, float]:
    wall = cpu = float("inf")
    for _ in range(repeats):
        cpu_begun, begun = time.process_time(), time.perf_counter()
        act()
        wall, cpu = min(wall, time.perf_counter() - begun), min(cpu, time.process_time() - cpu_begun)
    return {"wall_ms": round(wall * 1000, 2), "cpu_ms": round(cpu * 1000, 2)}


def measure(library: str, uri: str, what: str, count: int) -> dict[str, Any]:
    """Return all figures of one library."""
    module = importlib.import_module(library)
    with tempfile.TemporaryDirectory() as directory:
        warm = f"{directory}/warm.lance"
        module.write_dataset(ROWS, warm, data_storage_version="2.0")
        module.dataset(warm).to_table()
        copy = shutil.copytree(uri, f"{directory}/copy.lance")
        gc.collect()
        before = resident_bytes()
        opened = module.dataset(copy)
        memory = resident_bytes() - before
        found: dict[str, Any] = {"open": best_ms(lambda: module.dataset(copy), 5)}
        if what == "versions":
            found["append"] = best_ms(lambda: module.write_dataset(ROWS, copy, mode="append"), 5)
            return found
        found["bytes_per_fragment"] = round(memory / count)
        found["count rows"] = best_ms(lambda: module.dataset(copy).count_rows(), 3)
        found["open and plan"] = best_ms(lambda: module.dataset(copy).scanner(filter="id = 3").explain_plan(), 3)
        found["first row"] = best_ms(lambda: module.dataset(copy).head(1), 3)
        found["append"] = best_ms(lambda: module.write_dataset(ROWS, copy, mode="append"), 3)
        found["append again"] = best_ms(lambda: opened.insert(ROWS), 3)
        found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fragments", type=int, nargs="*", default=[100_000])
    parser.add_argument("--versions", type=int, nargs="*", default=[1, 10_000])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["LANCETABLE_FSYNC"] = "0"
    if options.measure:
        library, uri, what, count = options.measure
        print(json.dumps(measure(library, uri, what, int(count))))
        return
    for what, make in (("fragments", make_fragments), ("versions", make_versions)):
        for count in getattr(options, what):
            with tempfile.TemporaryDirectory() as directory:
                uri = f"{directory}/t.lance"
                make(uri, count)
                for library in LIBRARIES:
                    command = [sys.executable, __file__, "--measure", library, uri, what, str(count)]
                    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                    found = json.loads(out.splitlines()[-1])
                    if options.json:
                        print(json.dumps({"library": library, what: count, **found}), flush=True)
                        continue
                    print(f"{count} {what}, {library}")
                    for name, value in found.items():
                        if isinstance(value, dict):
                            print(f"    {name:20} {value['wall_ms']:10.2f} ms, CPU {value['cpu_ms']:10.2f} ms")
                        else:
                            print(f"    {name:20} {value:10}", flush=True)


if __name__ == "__main__":
    main()
