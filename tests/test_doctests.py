"""The examples in the docstrings of the public API run, and print the documented output.

Every example runs in its own directory with four tables:

    flights.lance     two versions: 6 rows, and 2 appended rows; stable row ids
    airlines.lance    the names of the carriers
    videos.lance      a blob column
    texts.lance       two fragments of 300 rows with vectors of 32 numbers in the column embedding

`ds` is `flights.lance`; `lancetable` and `pa` are imported, and all other names are imported by the example.
"""

from __future__ import annotations

import doctest
import importlib.util
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable import scope

MODULES = [
    *(
        f"lancetable.{module.name}"
        for module in pkgutil.iter_modules(lancetable.__path__)
        if not module.ispkg and module.name not in scope.missing_names(scope.MODULES)
    ),
    "lancetable.file.api",
    "lancetable.store.base",
    "lancetable.handlers.base",
    *(
        f"lancetable.torch{name}"
        for name in ("", ".iterable", ".loader", ".random_access", ".tensors")
        if importlib.util.find_spec("torch")
    ),
]
FLIGHTS = {
    "id": [1, 2, 3, 4, 5, 6, 7, 8],
    "carrier": ["UA", "AA", "B6", "DL", "UA", "B6", "AA", "UA"],
    "dest": ["IAH", "MIA", "BQN", "ATL", "ORD", "FLL", "LAX", "SFO"],
    "distance": [1400, 1089, 1576, 762, 719, 1065, 2475, 2586],
    "air_time": [227, 160, 183, 116, 150, 158, 345, 366],
    "dep_delay": [2, 4, None, 75, -4, 61, None, 0],
}
# The verbs that a new user needs first, each of which must have an example.
MAIN_VERBS = {
    "lancetable.table_checks.fsck",
    "lancetable.dataset.dataset",
    "lancetable.dataset.write_dataset",
    *(
        f"lancetable.dataset.LanceDataset.{name}"
        for name in [
            "add_columns",
            "alter_columns",
            "checkout_version",
            "cleanup_old_versions",
            "commit",
            "count_rows",
            "create_branch",
            "delete",
            "insert",
            "merge_insert",
            "restore",
            "sample",
            "scanner",
            "sql",
            "take",
            "to_batches",
            "to_table",
            "update",
        ]
    ),
    "lancetable.optimize.DatasetOptimizer.compact_files",
    "lancetable.refs.Branches",
    "lancetable.refs.Tags",
    "lancetable.writes.write_fragments",
}


def find_examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = [importlib.import_module(name) for name in MODULES]
    examples = [example for module in modules for example in finder.find(module) if example.examples]
    return list({example.name: example for example in examples}.values())


EXAMPLES = find_examples()


@pytest.fixture(scope="session")
def example_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("examples")
    flights = pa.table(FLIGHTS)
    lancetable.write_dataset(flights[:6], directory / "flights.lance", enable_stable_row_ids=True).insert(flights[6:])
    airlines = pa.table({"code": ["AA", "B6", "DL", "UA"], "airline": ["American", "JetBlue", "Delta", "United"]})
    lancetable.write_dataset(airlines, directory / "airlines.lance")
    videos = pa.table(
        [[1, 2], lancetable.blob_array([b"first video", b"second video"])],
        schema=pa.schema([("id", pa.int64()), lancetable.blob_field("video")]),
    )
    lancetable.write_dataset(videos, directory / "videos.lance", data_storage_version="2.2")
    vectors = np.random.default_rng(0).standard_normal((600, 32), dtype=np.float32)
    texts = lancetable.vector.vec_to_table(vectors, "embedding")
    lancetable.write_dataset(texts, directory / "texts.lance", max_rows_per_file=300)
    return directory


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_examples_print_the_documented_output(
    example: doctest.DocTest, example_tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(example_tables, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    example.globs = {"lancetable": lancetable, "pa": pa, "ds": lancetable.dataset("flights.lance")}
    runner.run(example, out=report.append, clear_globs=False)
    assert not runner.summarize(verbose=False).failed, "".join(report)


def test_examples_are_never_skipped() -> None:
    assert not [
        example.name
        for example in EXAMPLES
        if any(part.options.get(doctest.OPTIONFLAGS_BY_NAME["SKIP"]) for part in example.examples)
    ]


def test_main_verbs_have_examples() -> None:
    assert {example.name for example in EXAMPLES} >= MAIN_VERBS


RUN_MODULES = """
import doctest, importlib, sys
import pyarrow as pa

for name in sys.argv[1:]:
    options = {"extraglobs": {"pa": pa}, "optionflags": doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS}
    outcome = doctest.testmod(importlib.import_module(name), **options)
    assert outcome.attempted and not outcome.failed, name
"""


def test_examples_of_extension_types_print_the_documented_output(tmp_path: Path) -> None:
    """They run in a process of their own: where pylance is imported, its types are the registered ones."""
    command = [sys.executable, "-c", RUN_MODULES, "lancetable.arrow.bfloat16", "lancetable.arrow.images"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
