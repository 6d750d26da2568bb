"""The code of every page runs and prints what the page shows."""

from __future__ import annotations

import codeop
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sybil", reason="Sybil is not installed: pip install 'lancetable[dev]'")

from tests.docs.pages import ROOT, Page, page_names, run_console

NAMES = page_names()
SPARK = {name for name in NAMES if "pyspark" in (ROOT / name).read_text(encoding="utf-8")}
# Pages whose code uses buckets.
S3 = {"docs/how-to/object-stores.md", "docs/how-to/dynamodb.md"}
TRAINING = "docs/tutorials/training.md"  # needs PyTorch, whose CPU build cannot be installed everywhere


@pytest.fixture
def lake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve the bucket `lake` and the DynamoDB table `commits`, with credentials in the environment."""
    server = request.getfixturevalue("s3")
    server.make_bucket("lake")
    if "commits" not in server.client("dynamodb").list_tables()["TableNames"]:
        server.make_table("commits")
    for name, value in server.options.items():
        monkeypatch.setenv({"allow_http": "AWS_ALLOW_HTTP"}.get(name, name.upper()), value)
    monkeypatch.setenv("DYNAMODB_ENDPOINT", server.endpoint)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in SPARK])
def test_code_of_a_page_prints_the_shown_output(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    if name == TRAINING:
        pytest.importorskip("torch", reason="PyTorch is not installed")
        # Workers are forked, which pylance warns of if another page has imported it.
        command = [sys.executable, "-c", f"from tests.docs.pages import Page; Page({name!r}).run()"]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=600)
        return
    if name in S3:
        request.getfixturevalue("lake")
    Page(name).run()


def test_commands_are_executed_only_where_their_output_is_compared() -> None:
    for name in NAMES:
        text = (ROOT / name).read_text(encoding="utf-8")
        blocks = re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        assert not [block for block in blocks if re.search(r"^lancetable |^python -m lancetable", block, re.MULTILINE)]


def test_python_blocks_can_be_pasted_into_an_interactive_session() -> None:
    # Before Python 3.13, such a session ends a function or loop only after an empty line.
    for name in NAMES:
        text = (ROOT / name).read_text(encoding="utf-8")
        for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            compile_lines, lines = codeop.CommandCompiler(), list[str]()
            for line in [*block.splitlines(), ""]:
                lines.append(line)
                try:
                    complete = compile_lines("\n".join(lines)) is not None
                except SyntaxError as error:
                    pytest.fail(f"{name}: add an empty line before {line!r}: {error}")
                if complete:
                    lines.clear()


def test_skipped_blocks_have_a_reason() -> None:
    for name in NAMES:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"<!--+ *skip: (next|start) *--+>", text), name


@pytest.mark.parametrize(
    "block",
    ["$ echo a\nb\n", "$ false\n$ echo a\na\n", "$ false\n", "$ echo a\n"],
    ids=["other output", "failure before", "failure at the end", "output not shown"],
)
def test_a_wrong_console_block_is_reported(block: str) -> None:
    assert run_console(block)


def test_a_right_console_block_is_accepted() -> None:
    assert run_console("$ echo one 2 \\\n  three\none ... three\n$ exit 3\n$ echo $?\n3\n") is None
