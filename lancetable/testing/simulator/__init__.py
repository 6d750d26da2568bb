"""Deterministic simulator of writers and readers on an unreliable store, driven by a seed; see `simulation`."""

from __future__ import annotations

from lancetable.testing.simulator.simulation import Attempt, Job, Run, SimulationError, simulate
from lancetable.testing.simulator.world import FaultAt, Faults

__all__ = ["Attempt", "FaultAt", "Faults", "Job", "Run", "SimulationError", "simulate"]
