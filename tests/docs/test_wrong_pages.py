"""Pages that show something else than their code prints are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("sybil", reason="Sybil is not installed: pip install 'lancetable[dev]'")

from sybil.example import SybilFailure

from tests.docs.pages import Page

FENCE = "```"


def page(tmp_path: Path, *blocks: str) -> Page:
    text = "\n\n".join(f"{FENCE}{block}\n{FENCE}" if not block.startswith("<!") else block for block in blocks)
    (tmp_path / "page.md").write_text(text + "\n")
    return Page(str(tmp_path / "page.md"))


def test_blocks_share_a_namespace_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = [
        'python title="numbers_of_page.txt"\n7',
        "python\nfrom pathlib import Path\n\nn = int(Path('numbers_of_page.txt').read_text())",
        "python\nprint(n, 'and', id(n))",
        'text title="Output"\n7 and ...',
        "console\n$ cat numbers_of_page.txt\n7",
    ]
    tested = page(tmp_path, *blocks)
    tested.run()
    assert tested.document.namespace["n"] == 7


def test_other_output_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SybilFailure):
        page(tmp_path, "python\nprint(1)", 'text title="Output"\n2').run()


@pytest.mark.parametrize("after", [[], ["python\nm = 1"], ["console\n$ echo a\na"]])
def test_output_that_is_not_shown_is_an_error(tmp_path: Path, after: list[str]) -> None:
    with pytest.raises(AssertionError, match="does not show the output"):
        page(tmp_path, "python\nprint(1)", *after).run()


@pytest.mark.parametrize("first_line", ["", "pyhton", "python linenums", 'python {title="a.py"}', 'python title="a" x'])
def test_an_unknown_first_line_is_an_error(tmp_path: Path, first_line: str) -> None:
    with pytest.raises(ValueError, match="expected one of"):
        page(tmp_path, f"{first_line}\nprint(1)")


def test_a_skipped_block_is_not_executed(tmp_path: Path) -> None:
    tested = page(tmp_path, '<!-- skip: next "no network" -->', "python\nn = 1 / 0", "python\nm = 1")
    tested.run()
    assert tested.document.namespace["m"] == 1 and "n" not in tested.document.namespace
