"""The error of the typing rules."""

from __future__ import annotations


class AnalysisError(Exception):
    """An expression that violates a typing rule. The message states the reason.

    The binder converts it to InvalidSqlError and adds the position in the string.
    """
