"""Tables written by pylance, made once for all tests of reading."""

from __future__ import annotations

from typing import Any, NamedTuple

import lance
import pytest

from lancetable.table.version import TableVersion, open_version

from .tables import write_busy


class Pair(NamedTuple):
    """One table, opened by both."""

    ours: TableVersion
    theirs: lance.LanceDataset


@pytest.fixture(scope="session", params=["plain", "stable"])
def busy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    kind: Any = request.param
    path = tmp_path_factory.mktemp("busy") / kind
    theirs = write_busy(path, stable=kind == "stable")
    return Pair(open_version(str(path)), theirs)
