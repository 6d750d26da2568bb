"""Logging: everything goes to the logger named "lancetable"."""

from __future__ import annotations

import logging

__all__ = ["LOGGER", "set_logger"]

LOGGER = logging.getLogger("lancetable")


def set_logger(
    file_path: str = "lancetable.log",
    name: str = "lancetable",
    level: int = logging.INFO,
    format_string: str | None = None,
    log_handler: logging.Handler | None = None,
) -> None:
    """Send log records to a file, or to a handler of yours.

    Parameters
    ----------
    file_path : str
        File to append to; not used with `log_handler`.
    name : str
        Logger to attach to; those of lancetable are "lancetable" and its children.
    level : int
        Records below it are dropped.
    format_string : str, optional
        Layout of a line, in the `%` style of `logging`.
    log_handler : logging.Handler, optional
        Used in place of a file.
    """
    logger = logging.getLogger(name)
    handler = logging.FileHandler(file_path) if log_handler is None else log_handler
    handler.setFormatter(logging.Formatter(format_string or "%(asctime)s %(name)s [%(levelname)s] %(message)s"))
    handler.setLevel(level)
    logger.setLevel(level)
    logger.addHandler(handler)
