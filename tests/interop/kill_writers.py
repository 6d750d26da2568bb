"""Writers of `test_kills.py`, which are killed at random times and started again.

    kill_writers.py URI WRITERS KILLS ACKNOWLEDGED SEED

Prints one line of JSON: the numbers of killed and of failed processes.

Each writer appends batches of 5 rows with its own ids, and sometimes deletes a row of the start. It logs the first id
of a batch before the append and after its acknowledgement; `O_APPEND` keeps short lines intact, and the log outlives
the process. On a slow machine there are more than KILLS kills, until ACKNOWLEDGED appends are acknowledged.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time

import pyarrow as pa

import lancetable

ROWS = 5


def work(uri: str, first: int, seed: int) -> None:
    """Append and delete until killed."""
    log = os.open(f"{uri}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    rng = random.Random(seed)
    while True:
        ids = range(first, first + ROWS)
        os.write(log, b"begun %d\n" % first)
        if rng.random() < 0.8:
            lancetable.write_dataset(pa.table({"id": pa.array(ids, pa.int64())}), uri, mode="append")
            os.write(log, b"done %d\n" % first)
        else:
            lancetable.dataset(uri).delete(f"id = {rng.randrange(50)}")
        first += ROWS


def start(uri: str, number: int) -> int:
    child = os.fork()
    if child == 0:
        try:
            work(uri, number * 1_000_000, number)
        except BaseException as error:
            os.write(2, f"writer {number}: {error!r}\n".encode())
        finally:
            os._exit(3)
    return child


def acknowledged(uri: str) -> int:
    with open(f"{uri}.log") as log:
        return sum(line.startswith("done") for line in log)


def main(uri: str, writers: int, kills: int, appends: int, seed: int) -> None:
    rng = random.Random(seed)
    numbers = iter(range(1, 1_000_000))
    running = [start(uri, next(numbers)) for _ in range(writers)]
    killed = failed = 0
    while killed < kills or acknowledged(uri) < appends:
        time.sleep(rng.uniform(0.02, 0.2))
        place = rng.randrange(writers)
        os.kill(running[place], signal.SIGKILL)
        failed += os.waitpid(running[place], 0)[1] != signal.SIGKILL
        running[place] = start(uri, next(numbers))
        killed += 1
    for child in running:
        os.kill(child, signal.SIGKILL)
        failed += os.waitpid(child, 0)[1] != signal.SIGKILL
    print(json.dumps({"killed": killed + writers - failed, "failed": failed}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
