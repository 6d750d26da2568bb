"""Exhaustive exploration of the commit protocols."""

from __future__ import annotations

from typing import Any

import pytest

from lancetable.testing.simulator.model_checker import Create, Exploration, External, explore


def visit(model: Any) -> Exploration[Any]:
    return explore(model.start(), model.steps, model.broken)


@pytest.mark.parametrize(
    ("model", "states"),
    [(Create(2, 2, 1, 2), 3_000), (Create(3, 1, 1, 2), 7_000), (External(), 9_000), (External(exclusive=True), 9_000)],
    ids=str,
)
def test_no_reachable_state_violates_an_invariant(model: Any, states: int) -> None:
    result = visit(model)
    assert result.violation is None, result.path
    assert result.num_states >= states


@pytest.mark.slow
def test_no_state_of_larger_models_violates_an_invariant() -> None:
    total = 0
    for model in (Create(3, 2, 1, 2), External(2, 2, 1, 1, 1), External(3, 1, 1, 1, 1)):
        result = visit(model)
        assert result.violation is None, result.path
        total += result.num_states
    assert total > 1_000_000


@pytest.mark.parametrize(
    ("model", "violation"),
    [
        (Create(2, 1, 0, 0, exclusive=False), "acknowledged but is not in the history"),
        (Create(2, 1, 0, 1, reads_back=False), "is in the history 2 times"),
        (External(decides_first=False), "differs from the decided one"),
        (External(decides_first=False, exclusive=True), "differs from the decided one"),
        (External(finishes=False), "used the row"),
    ],
    ids=str,
)
def test_a_protocol_without_one_of_its_rules_violates_an_invariant(model: Any, violation: str) -> None:
    result = visit(model)
    assert result.violation is not None and violation in result.violation
    assert result.path[0] == model.start()
