"""Visual reports: the state of a table as one typed value, as JSON and as one HTML file.

    TableVersion  ── collect ──►  TableReport  ── render ──►  HTML
                                       └─────────────────►  JSON

Only `collect` and the modules that it calls do I/O. `advise` and `render_html` are pure functions of the report.
"""

from lancetable.report.model import TableReport

__all__ = ["TableReport"]
