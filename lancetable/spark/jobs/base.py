"""The jobs that change a table: common parts, and changes that an application numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from lancetable.commit.idempotency import is_done, last_number, properties_of
from lancetable.errors import AlreadyExistsError
from lancetable.format import flags
from lancetable.format import transaction as tx
from lancetable.format.transaction import Transaction
from lancetable.ops.change.batch_history import follows
from lancetable.spark.jobs.plans import planned_pin
from lancetable.spark.options import SourceOptions
from lancetable.spark.pin import pinned
from lancetable.spark.runner import Json
from lancetable.table.version import TableVersion

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableJob:
    """A job on the newest version that may carry the number of an application's change."""

    options: SourceOptions
    txn: tuple[str, int] | None

    def begin(self, *, consecutive: bool = False) -> TableVersion | None:
        """The newest version; None if the change was made before. Raises UnsupportedFeatureError."""
        version = pinned(self.options).open()
        manifest = version.manifest
        flags.check_writable(manifest.writer_flags, version.uri, reader_flags=manifest.reader_flags)
        if self.txn is not None and consecutive:
            remedy = "consecutive=False for this change (of a pipeline: continue_from_checkpoint=True)"
            return version if follows(version, *self.txn, remedy=remedy) else None
        if not is_done(manifest.config, self.txn):
            return version
        app, number = self.txn or ("", 0)
        last = last_number(manifest.config, app)
        if last != number:
            logger.warning(
                "%s: change %d of %r is not made, since change %s was made before. Numbers must rise: a job or"
                " checkpoint that numbers its changes from the start again needs another name",
                version.uri,
                number,
                app,
                last,
            )
        return None

    def _transaction(self, base: TableVersion, operation: tx.Operation, uuid: str) -> Transaction:
        return Transaction(base.version, uuid, operation, "", {} if self.txn is None else properties_of(*self.txn))

    def _base(self, plan: Json) -> TableVersion:
        return planned_pin(self.options, plan).open()

    def _once(self, commit: Callable[[], object], result: Json, nothing: Json) -> Json:
        """`result`, or `nothing` if another run of the same change was faster."""
        try:
            commit()
        except AlreadyExistsError:
            if not is_done(pinned(self.options).open().manifest.config, self.txn):
                raise
            return nothing
        return result
