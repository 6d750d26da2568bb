"""Program of a peer: a release of pylance that writes and reads files on request.

A line of JSON on standard input is a request, a line of JSON on standard output its reply: null, or the error. Rows are
passed as Arrow IPC: the stream of batches in `source` is written to `path`; rows that are read from `path` are stored
in `out`, as one stream for each query, in order. A query is null for all rows, [start, count] or {"rows": [...]}.
"""

import json
import sys

import pyarrow as pa
from lance.file import LanceFileReader, LanceFileWriter


def write(request):
    with pa.memory_map(request["source"]) as source:
        reader = pa.ipc.open_stream(source)
        with LanceFileWriter(request["path"], reader.schema, **request["settings"]) as writer:
            for batch in reader:
                writer.write_batch(batch)


def read(request):
    reader = LanceFileReader(request["path"])
    with pa.OSFile(request["out"], "wb") as out:
        for query in request["queries"]:
            if query is None:
                found = reader.read_all(batch_size=10_000)
            elif isinstance(query, dict):
                found = reader.take_rows(query["rows"])
            else:
                found = reader.read_range(*query)
            table = found.to_table()
            with pa.ipc.new_stream(out, table.schema) as stream:
                stream.write_table(table)


for line in sys.stdin:
    asked = json.loads(line)
    error = None
    try:
        {"write": write, "read": read}[asked["do"]](asked)
    except BaseException as problem:  # a panic is not an Exception
        error = f"{type(problem).__name__}: {problem}"
    print(json.dumps(error), flush=True)
