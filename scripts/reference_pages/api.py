"""Pages of the Python API: one for each public module, filled by mkdocstrings."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lancetable
from scripts.reference_pages.markdown import table

_PACKAGE = Path(lancetable.__file__).parent
MODULES = [
    "dataset",
    "scanner",
    "fragment",
    "writes",
    "merge_insert",
    "refs",
    "optimize",
    "cleanup",
    "table_checks",
    "schema",
    "indices",
    "indices_builder",
    "index_metadata",
    "operation",
    "fragment_metadata",
    "delta",
    "sql",
    "blob",
    "udf",
    "udf_checkpoint",
    "sampler",
    "vector",
    "vector_models",
    "util",
    "report.model",
    "hf",
    "torch",
    "torch.data",
    "torch.dist",
    "arrow.bfloat16",
    "arrow.images",
    "file.api",
    "progress",
    "session",
    "log",
    "debug",
    "types",
    "errors",
    "ops.maintain.stats",
    "store.base",
    "store.io_stats",
    "handlers.base",
    "spark",
    "spark.table",
    "spark.table_indexes",
    "spark.pipeline",
    "spark.write_table",
    "testing.conformance",
    "testing.simulator.simulation",
]


def summary(module: str) -> str:
    """Return the first line of the docstring of a module."""
    path = _PACKAGE.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return (ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def index_page() -> str:
    """Return the page that lists the modules."""
    rows = [[f"[`lancetable.{module}`](api/{module}.md)", summary(module)] for module in MODULES]
    return f"# Python API\n\nGenerated from the docstrings.\n\n{table(['module', ''], rows)}\n"


def module_page(module: str) -> str:
    """Return the page of a module."""
    return f"# lancetable.{module}\n\n::: lancetable.{module}\n    options:\n      show_root_heading: false\n"


def module_pages() -> dict[str, Callable[[], str]]:
    """Return a function for the page of each module."""
    return {module: partial(module_page, module) for module in MODULES}
