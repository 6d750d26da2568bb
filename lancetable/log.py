"""Logging: everything goes to the logger named "lancetable"."""

from __future__ import annotations

import logging
import os

__all__ = ["ENV_NAME_PYLANCE_LOGGING_LEVEL", "LOGGER", "get_log_level", "set_logger"]

ENV_NAME_PYLANCE_LOGGING_LEVEL = "LANCE_LOG"

LOGGER = logging.getLogger("lancetable")


def get_log_level() -> str:
    """The level that the environment variable LANCE_LOG asks for, in capitals; INFO if it names none.

    The variable may hold several entries with commas between them, as pylance reads it; those of the form
    `module=level` are meant for other libraries.
    """
    entries = os.environ.get(ENV_NAME_PYLANCE_LOGGING_LEVEL, "").split(",")
    named = [entry.strip().upper() for entry in entries if entry.strip() and "=" not in entry]
    level = named[0] if named else "INFO"
    return "DEBUG" if level == "TRACE" else level


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


# A level nobody knows counts as none: importing must not fail over a variable that other programs read as well.
_LEVEL = logging.getLevelName(get_log_level())
LOGGER.setLevel(_LEVEL if isinstance(_LEVEL, int) else logging.INFO)
