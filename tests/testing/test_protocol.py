"""The commit protocols, every state of them."""

from __future__ import annotations

from typing import Any

import pytest

from lancetable.testing.simulator.protocol import Create, External, Found, explore


def visit(model: Any) -> Found[Any]:
    return explore(model.start(), model.steps, model.broken)


@pytest.mark.parametrize(
    ("model", "states"),
    [(Create(2, 2, 1, 2), 3_000), (Create(3, 1, 1, 2), 7_000), (External(), 9_000), (External(exclusive=True), 9_000)],
    ids=str,
)
def test_no_state_breaks_a_promise(model: Any, states: int) -> None:
    found = visit(model)
    assert found.violation is None, found.path
    assert found.num_states >= states


@pytest.mark.slow
def test_a_million_states() -> None:
    total = 0
    for model in (Create(3, 2, 1, 2), External(2, 2, 1, 1, 1), External(3, 1, 1, 1, 1)):
        found = visit(model)
        assert found.violation is None, found.path
        total += found.num_states
    assert total > 1_000_000


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (Create(2, 1, 0, 0, exclusive=False), "acknowledged and is not there"),
        (Create(2, 1, 0, 1, asks=False), "is there 2 times"),
        (External(decides_first=False), "not the one that was decided"),
        (External(decides_first=False, exclusive=True), "not the one that was decided"),
        (External(finishes=False), "follows the row"),
    ],
    ids=str,
)
def test_a_protocol_without_one_of_its_rules_breaks_a_promise(model: Any, what: str) -> None:
    found = visit(model)
    assert found.violation is not None and what in found.violation
    assert found.path[0] == model.start()
