"""Check and repair of a whole table."""

from __future__ import annotations

import os
from collections.abc import Mapping

from lancetable.ops.maintain.fsck import check as checks
from lancetable.ops.maintain.fsck.report import NotChecked, Problem, Report
from lancetable.progress import ProgressLike, tracked
from lancetable.store.open import with_untrusted

__all__ = ["NotChecked", "Problem", "Report", "fsck"]


def fsck(
    uri: str | os.PathLike[str],
    *,
    repair: bool = False,
    deep: bool = False,
    storage_options: Mapping[str, str] | None = None,
    progress: ProgressLike = None,
    untrusted: bool = False,
) -> Report:
    """Check a whole table: every version, every file that a version references, and the branches.

    Parameters
    ----------
    uri
        Address of the table, or of the directory of one of its branches.
    repair
        Repair the problems that can be repaired without losing a readable version, then check again. Damaged manifests
        are moved to `_quarantine` below the table if a readable version remains. If the newest version has damaged
        files, a new version restores the newest intact one. Old unreferenced files are removed, and a version hint for
        a missing version is rewritten.
    deep
        Read every page of every data file, in batches of bounded size, and compare the values with zone maps and the
        schema. By default, only manifests, footers, deletion files and row ids are read.
    storage_options
        Options of the object store.
    progress
        A callback that receives `Progress` records of data files, rows and bytes, or True for a progress bar. The rows
        of a file count once for each of its columns.
    untrusted
        Check a table from a source that you do not trust; see `dataset`. A path outside of the table or a size above a
        limit is a problem of the kind `refused`, which a repair does not change.

    Returns
    -------
    Report
        `problems` lists the remaining problems; `is_clean` is True if there are none. After a repair, `found` lists the
        problems before it, and `repaired` the successful steps. `not_checked` lists parts that were not read, such as
        files of newer versions, and damage that the check cannot detect, such as changed bytes that decode to other
        valid values, because the format has no checksums.

    Raises
    ------
    DatasetNotFoundError
        If there is no table at `uri`.
    StoreError
        If the versions cannot be listed.

    Examples
    --------
    >>> lancetable.fsck("flights.lance", deep=True).is_clean
    True
    """
    options = with_untrusted(storage_options, untrusted)
    with tracked(progress, "fsck") as tracker:
        return checks.fsck(uri, repair=repair, deep=deep, storage_options=options, tracker=tracker)
