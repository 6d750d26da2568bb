"""The list of targets."""

from __future__ import annotations

from integration.fuzz import files, metadata, values

TARGETS = {target.name: target for target in (*files.TARGETS, *metadata.TARGETS, *values.TARGETS)}
