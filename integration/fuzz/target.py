"""A decoder with its seeds and its mutation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from integration.fuzz.mutate import Mutator


def mutate_bytes(data: bytes, mutator: Mutator) -> bytes:
    """Return changed bytes."""
    return mutator.bytes(data)


@dataclass(frozen=True)
class Target:
    """One fuzzing target.

    Attributes
    ----------
    name
        Name on the command line.
    run
        Decodes one input. Errors of the library are expected; other exceptions are findings.
    seeds
        Returns valid inputs.
    mutate
        Returns a changed input; by default any change of the bytes.
    cross
        Returns a combination of two inputs, if there is one that makes sense.
    """

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    mutate: Callable[[bytes, Mutator], bytes] = mutate_bytes
    cross: Callable[[bytes, bytes, Mutator], bytes] | None = None
