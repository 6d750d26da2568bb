"""Fuzzing targets decode their seeds, and damaged seeds raise only errors of the library; atheris is not needed."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from integration.fuzz.mutate import Mutator
from integration.fuzz.target import Target
from integration.fuzz.targets import TARGETS
from lancetable.errors import LanceError

SEEDS = 12


def flip(data: bytes, max_bytes: int) -> bytes:
    """Change one byte, as a simple form of the mutation of the fuzzer."""
    at = random.Random(data).randrange(len(data)) if data else 0
    return data[:at] + bytes([(data[at] if data else 0) ^ 0x41]) + data[at + 1 :]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_target_raises_only_errors_of_the_library(target: Target, scale: int) -> None:
    seeds = list(target.seeds())
    assert seeds
    for number, seed in enumerate(seeds[:: len(seeds) // SEEDS or 1]):
        target.run(seed)
        for trial in range(3 * scale):
            mutator = Mutator(number << 20 | trial, flip, 1 << 16)
            changed = target.mutate(seed, mutator)
            if target.cross is not None and trial % 3 == 2:
                changed = target.cross(changed, seeds[trial % len(seeds)], mutator)
            with suppress(LanceError):
                target.run(changed)
