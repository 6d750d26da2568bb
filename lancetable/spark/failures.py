"""Errors of a run in one line: the pipeline, the batch, the cause, and the files of the batch.

Spark wraps an error of a `foreachBatch` function in an error of the stream, whose message has the traces of Python and
Java. On Connect nothing else is left of it. So an error gets its name where it is raised, and is found by it.
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
    """Give errors a message of the form "orders failed in batch 3: cause (files)", unless they have one.

    A `LanceError` keeps its class, others become one. `files` may be filled within the context; they are left out if
    the cause names one of them.

    Raises
    ------
    LanceError
        For each error within the context, which is its cause.
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
    """Return the cause of an error in one line, without the traces that Spark adds to it.

    That is the last exception of a Python worker, or else the first line of the message.
    """
    text = str(error)
    if isinstance(error, LanceError):
        return text
    if not isinstance(error, PySparkException):
        java = re.match(r"An error occurred while calling \S+\n: (.*)", text)  # of Py4J
        text = java[1] if java else f"{type(error).__name__}: {text}"
    raised = re.findall(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(.+)", text)
    first = raised[-1] if raised else text.rpartition("terminated with exception: ")[2].strip().partition("\n")[0]
    return re.sub(r"^lancetable\.errors\.\w+: | SQLSTATE: \w+;?$", "", first)
