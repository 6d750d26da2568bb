"""Comparison of the checkpoint of a Spark stream with the batch number that the table records.

    checkpoint/metadata     {"id": "..."}     id of the stream
    checkpoint/offsets/7                      batch 7 was planned
    checkpoint/commits/7                      batch 7 is complete

A table records the number of the last merged batch (`commit/idempotency.py`). It must be the number of the last
complete batch, or of a planned batch that Spark will repeat. With any other number, rows would be lost or added twice.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from lancetable.commit.idempotency import config_key, last_number
from lancetable.dataset import LanceDataset
from lancetable.ops.change.batch_history import replaced_since


@dataclass(frozen=True)
class Checkpoint:
    """The state of a stream: its id, and the last batches that were planned and completed, -1 for none."""

    path: str
    stream_id: str
    planned: int
    completed: int


def read_checkpoint(spark: SparkSession, path: str) -> Checkpoint | None:
    """Return the state of the checkpoint at a path, None if no stream has started there.

    Raises
    ------
    AnalysisException
        If Spark cannot read the checkpoint.
    """
    folder = literal_path(path.rstrip("/"))
    # Two paths, which overlap: for a single path that is a pattern, Spark logs a warning with a stack trace.
    paths = [f"{folder}/metadata", f"{folder}/{{metadata,offsets/*,commits/*}}"]
    try:
        # Read it through Spark, which has the credentials of the checkpoint's store.
        files = spark.read.format("binaryFile").load(paths).collect()
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None
        raise
    numbers: dict[str, list[int]] = {"offsets": [], "commits": []}
    stream_id = None
    for file in files:
        folder, name = file["path"].rsplit("/", 2)[1:]
        if name == "metadata":
            stream_id = str(json.loads(bytes(file["content"]))["id"])
        elif folder in numbers and name.isdecimal():
            numbers[folder].append(int(name))
    if stream_id is None:
        return None
    return Checkpoint(path, stream_id, max(numbers["offsets"], default=-1), max(numbers["commits"], default=-1))


def literal_path(path: str) -> str:
    """Return the glob pattern that matches exactly one path."""
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", path)


def checkpoint_mismatch(table: LanceDataset | None, uri: str, app: str, checkpoint: Checkpoint) -> str | None:
    """Compare a table with the checkpoint of its stream before the next batch is read.

    Returns
    -------
    str or None
        A description of the problem and its remedy. None if the last recorded batch is the last complete batch or one
        that Spark repeats, and the table was not overwritten after it.
    """
    recorded = None if table is None else last_number(table.table_version.manifest.config, app)
    last, completed = -1 if recorded is None else recorded, checkpoint.completed
    remedy = (
        " Start again with a new checkpoint, which reads everything, or pass continue_from_checkpoint=True for one run"
        " to accept the table as it is; "
    )
    if last not in (completed, checkpoint.planned):
        done = "no batch" if completed < 0 else f"batch {completed}"
        last_batch = "no batch" if recorded is None else f"batch {recorded}"
        state = f"there is no table at {uri}" if table is None else f"{uri} records {last_batch} of {app!r}"
        if last < completed:
            cause = (
                "The table was removed, moved, replaced or restored to an older version since, or the pipeline renamed."
            )
            effect = f"the rows of {_batches(last + 1, completed)} are then not read again"
        else:
            cause = "The checkpoint was replaced by an older state of it."
            effect = f"the files of {_batches(completed + 1, last)} are then merged again"
        return (
            f"table and checkpoint do not match: {checkpoint.path} has completed {done}, and {state}."
            f" {cause}{remedy}{effect}"
        )
    version = None if table is None else replaced_since(table.table_version, app)
    if version is None:
        return None
    return (
        f"table and checkpoint do not match: version {version} of {uri} replaced all rows after batch {last} of"
        f" {app!r}, and {checkpoint.path} has completed batch {completed}.{remedy}the rows of"
        f" {_batches(0, last)} are then not read again"
    )


def accept_table(table: LanceDataset, app: str, number: int) -> None:
    """Replace the recorded number: the batches up to `number` count as merged. -1 means no batch."""
    if number >= 0:
        table.update_config({config_key(app): str(number)})
    elif config_key(app) in table.config():
        table.delete_config_keys([config_key(app)])


def _batches(first: int, last: int) -> str:
    return f"batch {first}" if first == last else f"batches {first} to {last}"
