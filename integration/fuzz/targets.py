"""The list of targets."""

from __future__ import annotations

from integration.fuzz import files, indexes, metadata, values

TARGETS = {target.name: target for target in (*files.TARGETS, *indexes.TARGETS, *metadata.TARGETS, *values.TARGETS)}
