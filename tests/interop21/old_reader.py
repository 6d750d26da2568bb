"""Runs under an old pylance: reads the files named on standard input and leaves each one's rows beside it as Arrow IPC.

A line of JSON for each file comes out: its path, and what went wrong if anything did. A file that ends the process ends
the list there, so the parent knows which it was.
"""

import json
import sys

import pyarrow as pa
from lance.file import LanceFileReader

for line in sys.stdin:
    path = line.strip()
    error = None
    try:
        table = LanceFileReader(path).read_all(batch_size=10_000).to_table()
        with pa.OSFile(path + ".arrow", "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table)
    except BaseException as problem:  # a panic is no Exception
        error = f"{type(problem).__name__}: {problem}"
    print(json.dumps([path, error]), flush=True)
