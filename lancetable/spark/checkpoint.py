"""Checkpoints of Spark's streams, compared with what the table records.

    checkpoint/metadata     {"id": "..."}     names the stream
    checkpoint/offsets/7                      batch 7 was planned
    checkpoint/commits/7                      batch 7 is complete

A table records the number of the last batch that was merged (`commit.once`). It is that of the last complete batch, or
of a planned one that Spark will repeat. Anything else means that rows would be lost or added twice.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from lancetable.commit.once import config_key, last_number
from lancetable.errors import InvalidOperationError
from lancetable.ops.batches import replaced_since

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lancetable.dataset import LanceDataset

__all__ = ["Checkpoint", "accept_table", "check_table", "read_checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """The state of a stream: its id, and the last batches that were planned and completed, -1 for none."""

    path: str
    stream_id: str
    planned: int
    completed: int


def read_checkpoint(spark: SparkSession, path: str) -> Checkpoint | None:
    """Return the state of the checkpoint at a path, None if no stream has begun there."""
    # Through Spark, which has the credentials of the checkpoint's store; in a path its glob characters are escaped.
    root = re.sub(r"([*?\[\]{}\\,])", r"\\\1", path.rstrip("/"))
    try:
        files = spark.read.format("binaryFile").load(f"{root}/{{metadata,offsets/*,commits/*}}").collect()
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


def check_table(table: LanceDataset | None, uri: str, app: str, checkpoint: Checkpoint) -> None:
    """Compare a table with the checkpoint of the stream that is merged into it, before the next batch is read.

    Raises
    ------
    InvalidOperationError
        If the last batch that the table records is not the last one that the checkpoint has completed, or one that
        Spark repeats; or if the table was overwritten since that batch.
    """
    recorded = None if table is None else last_number(table.table_version.manifest.config, app)
    last = -1 if recorded is None else recorded
    done = "no batch" if checkpoint.completed < 0 else f"batch {checkpoint.completed}"
    found = "no batch" if recorded is None else f"batch {recorded}"
    if last not in (checkpoint.completed, checkpoint.planned):
        state = f"{uri} records {found} of {app!r}" if table is not None else f"there is no table at {uri}"
        if last < checkpoint.completed:
            cause = "The table was removed, moved, replaced or restored to an older version since"
            effect = f"the rows of {_batches(last + 1, checkpoint.completed)} are then not read again"
        else:
            cause = "The checkpoint was replaced by an older state of it"
            effect = f"{_batches(checkpoint.completed + 1, last)} are then merged again, with the files that are new"
        raise InvalidOperationError(
            f"table and checkpoint are out of step: {checkpoint.path} has completed {done}, and {state}. {cause}."
            " Start again with a new checkpoint, which reads all files, or pass continue_from_checkpoint=True to"
            f" accept the table as it is; {effect}"
        )
    if table is not None and recorded is not None:
        version = replaced_since(table.table_version, app)
        if version is not None:
            raise InvalidOperationError(
                f"table and checkpoint are out of step: version {version} of {uri} replaced all rows after {found} of"
                f" {app!r}, the last one that {checkpoint.path} has completed, was merged. Start again with a new"
                " checkpoint, which reads all files, or pass continue_from_checkpoint=True to accept the table as it is"
            )


def accept_table(table: LanceDataset, app: str, number: int) -> None:
    """Record that the batches up to `number`, -1 for none, are merged, whatever the table recorded before."""
    if number >= 0:
        table.update_config({config_key(app): str(number)})
    elif config_key(app) in table.config():
        table.delete_config_keys([config_key(app)])


def _batches(first: int, last: int) -> str:
    return f"batch {first}" if first == last else f"batches {first} to {last}"
