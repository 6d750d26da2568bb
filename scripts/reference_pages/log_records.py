"""Page of the log records, from the calls of loggers in the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import lancetable
from scripts.reference_pages.markdown import table

_LEVELS = ("error", "warning", "info", "debug")
_INTRODUCTION = """# Log records

Generated from the source. Loggers are named after modules, below `lancetable`. The level is INFO, or that of the
environment variable `LANCE_LOG`. `lancetable.set_logger(file_path)` sends the records to a file. Records contain no
secrets. `%s` and `%d` are filled in. [Observability](../how-to/observability.md#log-records) lists the events with
their fields, and what to alert on.

"""


def records() -> Iterator[tuple[str, str, str]]:
    """Yield level, logger and message of each call."""
    root = Path(lancetable.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if "testing" in path.parts:
            continue
        module = ".".join(path.relative_to(root.parent).with_suffix("").parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LEVELS):
                continue
            if isinstance(node.func.value, ast.Name) and node.func.value.id.lower() == "logger" and node.args:
                text = node.args[0]
                text = constants.get(text.id, text) if isinstance(text, ast.Name) else text
                yield node.func.attr.upper(), module, str(ast.literal_eval(text))


def page() -> str:
    """Return the page."""
    found = sorted(set(records()), key=lambda record: (_LEVELS.index(record[0].lower()), record[1:]))
    rows = [[level, f"`{module}`", f"`{' '.join(message.split())}`"] for level, module, message in found]
    return _INTRODUCTION + table(["level", "logger", "message"], rows)
