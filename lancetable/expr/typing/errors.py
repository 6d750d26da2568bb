"""Exception raised by the typing rules."""

from __future__ import annotations


class AnalysisError(Exception):
    """An expression violates a typing rule. The message contains the reason.

    The binder converts it to InvalidSqlError and adds the position in the string.
    """
