"""Comparison of a table with the logs of its writers, after all of them have ended."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import lancetable
from integration.soak.log import MAIN, History
from integration.soak.tables import LIBRARIES, contents_of, open_rows

__all__ = ["check"]


def check(uri: str, options: Mapping[str, str], history: History) -> Iterator[str]:
    """Yield the problems of the table, before and after the files of killed writers are removed."""
    yield from _check_once(uri, options, history)
    dataset = lancetable.dataset(uri, storage_options=dict(options))
    dataset.cleanup_old_versions(timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False)
    for problem in _check_once(uri, options, history):
        yield f"after a cleanup: {problem}"


def _check_once(uri: str, options: Mapping[str, str], history: History) -> Iterator[str]:
    tables = {}
    for name, module in LIBRARIES.items():
        library = importlib.import_module(module)
        tables[name] = open_rows(library, uri, options).to_table()
        for problem in _check_places(library, uri, options, history):
            yield f"{name}: {problem}"
    if tables["ours"] != tables["pylance"]:
        yield f"the libraries read different rows: {tables['ours'].num_rows} and {tables['pylance'].num_rows}"
    for found in lancetable.fsck(uri, deep=True, storage_options=dict(options)).problems:
        if found.kind != "orphan":
            yield f"fsck: {found}"


def _check_places(library: Any, uri: str, options: Mapping[str, str], history: History) -> Iterator[str]:
    """Compare main, each tag and each branch with the possible contents."""
    newest = open_rows(library, uri, options)
    there = {MAIN, *(f"tag {name}" for name in newest.tags.list()), *(f"branch {n}" for n in newest.branches.list())}
    yield from (f"{place} is not in any log" for place in there.difference(*(l.places for l in history.lanes.values())))
    try:
        main = contents_of(newest.to_table())
    except ValueError as error:
        yield str(error)
        return
    yield from (f"lane {number} is not in any log" for number in main.keys() - history.lanes.keys())
    for lane in history.lanes.values():
        for place, possible in lane.places.items():
            if place not in there:
                if None not in possible:
                    yield f"lane {lane.number}: {place} is lost"
                continue
            try:
                if place == MAIN:
                    found = main.get(lane.number, {})
                else:
                    rows = open_rows(library, uri, options, place).to_table(filter=f"lane = {lane.number}")
                    found = contents_of(rows).get(lane.number, {})
            except Exception as error:
                yield f"lane {lane.number}, {place}: {type(error).__name__}: {error}"
                continue
            if found not in possible:
                expected = possible[0] or {}
                wrong = sorted(found.items() ^ expected.items())[:6]
                yield (
                    f"lane {lane.number}, {place}: {len(found)} rows, expected {len(expected)}, "
                    f"{len(possible)} possible contents; (row, revision) in one of them: {wrong}"
                )
