"""Writer of `test_races.py`: a process that imports one of the libraries only.

race_writer.py LIBRARY ACTION URI NUMBER COUNT   ->   one line of JSON for each commit: its ids or its name
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

# Words of errors after which a writer retries, because other commits were faster too often.
CONFLICT_TEXTS = ("conflict", "concurrent writers")


RETRIES: dict[str, Any] = {"conflict_retries": 100, "retry_timeout": timedelta(seconds=60)}


def again(error: OSError) -> bool:
    told = f"{type(error).__name__} {error}".lower()
    return any(text in told for text in CONFLICT_TEXTS)


def insist(act: Any) -> Any:
    """Repeat a change that loses against other commits. Other errors are passed on."""
    for _ in range(200):
        done, result = attempt(act)
        if done:
            return result
    raise AssertionError("lost 200 times")


def attempt(act: Any) -> tuple[bool, Any]:
    try:
        return True, act()
    except OSError as error:
        if not again(error):
            raise
        return False, None


def wait_for(uri: str) -> None:
    """Wait for the start signal of the test, so that all writers start together."""
    deadline = time.monotonic() + 60
    while not Path(f"{uri}.go").exists():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def write(library: str, action: str, uri: str, number: int, count: int) -> None:
    module = importlib.import_module(library)
    handle = module.dataset(uri)
    print(json.dumps("ready"), flush=True)
    wait_for(uri)
    for turn in range(count):
        first = 1_000_000 + number * 10_000 + turn * 10
        if action == "append":
            rows = pa.table({"id": pa.array(range(first, first + 10), pa.int64()), "by": [library] * 10})
            if turn % 2:
                insist(lambda rows=rows: module.write_dataset(rows, uri, mode="append"))
            else:
                # The handle stays open and misses commits of other writers.
                insist(lambda rows=rows: handle.insert(rows))
            done = list(range(first, first + 10))
        elif action == "delete":
            # One row of each fragment, so that all deletes change the same fragments.
            row = number * count + turn
            ids = [row, 1000 + row, 2000 + row]
            predicate = f"id IN ({', '.join(map(str, ids))})"
            result = insist(lambda predicate=predicate: module.dataset(uri).delete(predicate, **RETRIES))
            assert result == {"num_deleted_rows": 3}, result
            done = ids
        else:
            tag = f"{library}{number}-{turn}"
            module.dataset(uri).tags.create(tag, 1)
            done = [tag]
        print(json.dumps(done), flush=True)


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
