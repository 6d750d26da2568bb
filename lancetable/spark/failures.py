"""Error messages of a run in one line: the pipeline, the batch, the cause, and the files of the batch.

Spark wraps an error of a `foreachBatch` function in an error of the stream, whose message contains the tracebacks of
Python and Java. On Connect, the client receives only this message. The message of an error is therefore completed where
the error is raised, and later extracted from that of Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy

from pyspark.errors import PySparkException

from lancetable.errors import LanceError

_SHOWN_FILES = 3


@contextmanager
def named_failures(pipeline: str, place: str = "", files: Sequence[str] = ()) -> Iterator[None]:
    """Raise errors with a message of the form "orders failed in batch 3: cause (files)".

    A `LanceError` keeps its class; any other error is replaced by a `LanceError`. A message that already has the form
    is kept. `files` may be filled while the context is open; they are omitted if the cause contains one of them.

    Raises
    ------
    LanceError
        For each error within the context. The original error is its `__cause__`.
    """
    try:
        yield
    except Exception as error:
        name, cause = f"{pipeline} failed", cause_of(error)
        if isinstance(error, LanceError) and cause.startswith(name):
            raise
        failure = copy(error) if isinstance(error, LanceError) else LanceError()
        more = ", ..." if len(files) > _SHOWN_FILES else ""
        shown = "" if any(file in cause for file in files) else f" ({', '.join(files[:_SHOWN_FILES])}{more})"
        failure.args = (cause if cause.startswith(name) else f"{name}{place}: {cause}{shown if files else ''}",)
        raise failure from error


def cause_of(error: Exception) -> str:
    """Return the cause of an error in one line, without the tracebacks that Spark adds.

    The cause is the last exception of a Python worker or, without one, the first line of the message.
    """
    text = str(error)
    if isinstance(error, LanceError):
        return text
    if not isinstance(error, PySparkException):
        java = re.match(r"An error occurred while calling \S+\n: (.*)", text)  # message of Py4J
        text = java[1] if java else f"{type(error).__name__}: {text}"
    raised = re.findall(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(.+)", text)
    first = raised[-1] if raised else text.rpartition("terminated with exception: ")[2].strip().partition("\n")[0]
    return re.sub(r"^lancetable\.errors\.\w+: | SQLSTATE: \w+;?$", "", first)
