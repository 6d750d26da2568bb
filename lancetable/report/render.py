"""The HTML document of a report, a pure function of its content.

Text of the table is escaped by jinja2 (autoescape), hidden characters are replaced by their numbers, and the rows of
tables are embedded as JSON in ASCII without the characters that end a script. The policy in the document permits its
own style and script only, by their hashes, so that other scripts do not run even if a text were not escaped.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from lancetable.errors import MissingPackageError
from lancetable.report import charts, tables
from lancetable.report.text import count, moment, plural, share, shorten, size, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lancetable.report.model import FilePages, TableReport

_UNSAFE: Final = {ord(character): f"\\u{ord(character):04x}" for character in "<>&'"}


def render_html(report: TableReport) -> str:
    """Return the document. Raises MissingPackageError if jinja2 is not installed."""
    style, script = _asset("report.css"), _asset("report.js")
    shown = list(_tables(report))
    document: str = (
        _environment()
        .get_template("report.html")
        .render(
            report=report,
            name=visible(shorten(report.overview.uri.rstrip("/").rpartition("/")[2] or report.overview.uri, 100)),
            figures=list(_figures(report)),
            versions_chart=charts.versions_chart(report.history),
            fragments_chart=charts.fragments_chart(report.fragments),
            indexes_chart=charts.indexes_chart(report),
            files=[_file_view(number, file) for number, file in enumerate(report.files)],
            tables={table.id: table for table in shown},
            properties=list(tables.properties_tables(report)),
            problems=list(tables.problems_table(report)),
            page_rows=tables.PAGE_ROWS,
            style=style,
            script=script,
            policy=_policy(style, script),
            data=embedded_json({"page_rows": tables.PAGE_ROWS, "tables": {table.id: table.data() for table in shown}}),
        )
    )
    return document


def _policy(style: str, script: str) -> str:
    """Return a Content-Security-Policy that permits one style and one script."""
    allowed = f"style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def embedded_json(value: Any) -> str:
    """Return JSON in ASCII that contains no character with a meaning in HTML."""
    return json.dumps(value, separators=(",", ":")).translate(_UNSAFE)


def _tables(report: TableReport) -> Iterator[tables.Table]:
    yield tables.versions_table(report)
    yield tables.fragments_table(report)
    yield tables.column_sets_table(report.fragments)
    yield tables.columns_table(report.columns)
    yield tables.indexes_table(report.indexes)
    for number, file in enumerate(report.files):
        yield tables.pages_table(file, number)
    yield from tables.properties_tables(report)
    yield from tables.problems_table(report)


def _file_view(number: int, file: FilePages) -> dict[str, Any]:
    return {"number": number, "file": file, "chart": charts.pages_chart(file), "table": f"pages-table-{number}"}


def _figures(report: TableReport) -> Iterator[tuple[str, str, str]]:
    """Yield label, value and remark of each figure at the top."""
    overview = report.overview
    rows, deleted = overview.num_rows, overview.num_deleted_rows
    yield "Rows", count(rows), f"{overview.num_columns:,} columns" if overview.num_columns != 1 else "1 column"
    of_all = share(deleted or 0, (rows or 0) + (deleted or 0))
    yield "Deleted rows", count(deleted), "" if not deleted else f"{of_all} of stored rows"
    yield "Data", size(overview.data_bytes), plural(overview.num_data_files, "file")
    mean = "" if not rows else f"{plural(round(rows / overview.num_fragments), 'row')} each"
    yield "Fragments", count(overview.num_fragments), mean
    yield "Versions", count(report.history.total), plural(len(report.tags), "tag")
    yield "Indexes", count(len(report.indexes)), ", ".join(sorted({index.type for index in report.indexes})[:3])
    yield "Data format", overview.data_format, "stable row ids" if overview.stable_row_ids else ""


@cache
def _environment() -> Any:
    try:
        from jinja2 import Environment, FunctionLoader, StrictUndefined
        from markupsafe import Markup, escape
    except ImportError as error:
        raise MissingPackageError(
            "reports in HTML need jinja2: run pip install 'lancetable[report]', or use JSON", name="jinja2"
        ) from error

    def shown(value: object) -> object:
        return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=count, size=size, moment=moment, shorten=shorten, plural=plural, raw=Markup, cell=escape
    )
    return environment


@cache
def _asset(name: str) -> str:
    return (files("lancetable.report") / "templates" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
