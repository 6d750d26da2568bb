"""The code of the quick starts in docs/ runs from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

pytestmark = pytest.mark.spark
DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["spark-quickstart-delta.md", "spark-quickstart-iceberg.md"])
def test_the_code_of_a_quick_start_runs_in_one_session(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, page: str
) -> None:
    text = (DOCS / page).read_text()
    if "writeStream" in text:
        request.getfixturevalue("streaming_writes")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names: dict[str, Any] = {}
    for block in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        before = "\n" * text.count("\n", 0, block.start(1))  # so that errors have the line of the page
        exec(compile(before + block[1], page, "exec"), names)
    assert names["spark"] is spark
