"""The generated pages: path below docs/ -> function that returns the Markdown text."""

from __future__ import annotations

from collections.abc import Callable

from scripts.reference_pages import (
    api,
    command_line,
    compatibility,
    errors,
    known_limits,
    log_records,
    spark_options,
    storage_options,
)

PAGES: dict[str, Callable[[], str]] = {
    "reference/api.md": api.index_page,
    **{f"reference/api/{module}.md": build for module, build in api.module_pages().items()},
    "reference/cli.md": command_line.page,
    "reference/compatibility.md": compatibility.page,
    "reference/errors.md": errors.page,
    "reference/known-limits.md": known_limits.page,
    "reference/log-records.md": log_records.page,
    "reference/spark-options.md": spark_options.page,
    "reference/storage-options.md": storage_options.page,
}
