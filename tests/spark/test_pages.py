"""The code of the pages about Spark runs in one session, and prints what the page shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")
pytest.importorskip("sybil", reason="Sybil is not installed: pip install 'lancetable[dev]'")

from tests.docs.pages import ROOT, Page, page_names

pytestmark = pytest.mark.spark
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in page_names()}


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if "pyspark" in text])
def test_the_code_of_a_page_runs_in_one_session(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, name: str
) -> None:
    if "writeStream" in TEXTS[name]:
        request.getfixturevalue("streaming_writes")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    page = Page(name)
    page.run()
    assert page.document.namespace.get("spark", spark) is spark
