"""Tags and branches of a `SparkTable`: methods of `lancetable.refs`, executed by the coordinator of the table."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from typing import Any, Literal

from lancetable.dataset import LanceDataset
from lancetable.types import Reference


class SparkBranches:
    """Branches of a table. `SparkTable.for_path(spark, uri, branch=name)` opens a branch.

    Examples
    --------
    >>> table.branches.create("experiment")  # doctest: +SKIP
    """

    _kind: Literal["tags", "branches"] = "branches"

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def list(self) -> dict[str, dict[str, Any]]:
        """Return all branches (of `SparkTags`: all tags) by name, as `lancetable.refs` does, with times as strings.

        Returns
        -------
        dict
            A dict for each name, which contains the `version` of a tag or the `parent_version` of a branch.
        """
        return dict(self._do("list"))

    def create(self, name: str, reference: Reference | None = None) -> None:
        """Create a branch (of `SparkTags`: a tag).

        Parameters
        ----------
        name
            Name that is not in use.
        reference
            A version number, a tag, or a pair (branch, version); the newest version by default.

        Raises
        ------
        AlreadyExistsError, InvalidRefError
            If the name is in use or invalid.
        VersionNotFoundError, RefNotFoundError
            If the reference does not exist.
        """
        self._do("create", name, reference)

    def delete(self, name: str) -> None:
        """Remove a branch with its versions and files (of `SparkTags`: a tag, but not its version).

        Parameters
        ----------
        name
            Name of the branch or tag.

        Raises
        ------
        RefNotFoundError
            If it does not exist.
        InvalidOperationError
            If other branches start from the branch.
        """
        self._do("delete", name)

    def _do(self, method: str, *arguments: Any) -> Any:
        return self._call(_called, kind=self._kind, method=method, arguments=arguments)


class SparkTags(SparkBranches):
    """Tags of a table. A cleanup does not remove tagged versions.

    Examples
    --------
    >>> table.tags.create("reviewed", 3)  # doctest: +SKIP
    """

    _kind = "tags"

    def update(self, name: str, reference: Reference | None = None) -> None:
        """Move a tag to another version.

        Parameters
        ----------
        name
            Name of the tag.
        reference
            As in `create`.

        Raises
        ------
        RefNotFoundError, VersionNotFoundError
            If the tag or the reference does not exist.
        """
        self._do("update", name, reference)


def _called(dataset: LanceDataset, kind: str, method: str, arguments: builtins.list[Any]) -> Any:
    target = (
        dataset.create_branch if (kind, method) == ("branches", "create") else getattr(getattr(dataset, kind), method)
    )
    value = target(*arguments)
    return json.loads(json.dumps(value, default=str)) if method == "list" else None
