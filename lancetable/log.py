"""Logging to the logger named "lancetable"."""

from __future__ import annotations

import logging
import os

ENV_NAME_PYLANCE_LOGGING_LEVEL = "LANCE_LOG"

LOGGER = logging.getLogger("lancetable")


def get_log_level() -> str:
    """Return the log level of the environment variable LANCE_LOG in capitals; INFO by default.

    As in pylance, the variable may contain several entries separated by commas; those of the form `module=level` are
    for other libraries and ignored.
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
    """Send log records to a file or a handler.

    Parameters
    ----------
    file_path
        File to append to; ignored if `log_handler` is given.
    name
        Logger to attach to: "lancetable" or one of its children.
    level
        Minimum level of records.
    format_string
        Format of a line, in the `%` style of `logging`.
    log_handler
        Handler to use instead of a file.
    """
    logger = logging.getLogger(name)
    handler = logging.FileHandler(file_path) if log_handler is None else log_handler
    handler.setFormatter(logging.Formatter(format_string or "%(asctime)s %(name)s [%(levelname)s] %(message)s"))
    handler.setLevel(level)
    logger.setLevel(level)
    logger.addHandler(handler)


# Unknown levels are ignored, because an import must not fail over a variable that other programs also read.
_LEVEL = logging.getLevelName(get_log_level())
LOGGER.setLevel(_LEVEL if isinstance(_LEVEL, int) else logging.INFO)
