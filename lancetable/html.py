"""HTML representation of a dataset in notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lancetable.dataset import LanceDataset


def dataset_html(dataset: LanceDataset) -> str:
    """Return the properties and the columns of a dataset as two HTML tables."""
    manifest = dataset.table_version.manifest
    num_rows = manifest.fragments.num_rows()
    properties = [
        ("uri", dataset.uri),
        ("version", f"{dataset.version}, {manifest.timestamp:%Y-%m-%d %H:%M:%S} UTC"),
        ("rows", "unknown" if num_rows is None else f"{num_rows:,}"),
        ("fragments", f"{len(manifest.fragments):,}"),
        ("data format", dataset.data_storage_version),
    ]
    columns = [(field.name, f"{field.type}{'' if field.nullable else ' not null'}") for field in dataset.schema]
    return f"<div><b>LanceDataset</b>{_html_table(properties)}{_html_table(columns)}</div>"


def _html_table(rows: Iterable[tuple[str, str]]) -> str:
    """Return a two-column HTML table; all strings are escaped."""
    cells = [f"<tr><th>{escape(str(key))}</th><td>{escape(str(value))}</td></tr>" for key, value in rows]
    return f"<table>{''.join(cells)}</table>"
