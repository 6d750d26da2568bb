"""The HTML document: names in a table are text, whatever they contain; numbers and sizes are readable."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import lancetable as lance
from lancetable.errors import MissingPackageError
from lancetable.report import TableReport, render, text
from lancetable.report.charts import set_name
from tests.report.report_tables import HOSTILE, hostile_table, many_fragments

VOID = {"meta", "br", "hr", "img", "input", "link", "base", "wbr", "source", "embed"}


class Document(HTMLParser):
    """Elements, attributes and texts of a document. Elements must be nested."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[dict[str, str | None]] = []
        self.texts: list[str] = []
        self.contents: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(content)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += attrs
        if tag == "script":
            self.scripts.append(dict(attrs))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self._open:
            self.contents.setdefault(self._open[-1], []).append(data)


@pytest.fixture(scope="module")
def hostile_report(tmp_path_factory: pytest.TempPathFactory) -> TableReport:
    return hostile_table(tmp_path_factory.mktemp("hostile")).report()


@pytest.fixture(scope="module")
def hostile(hostile_report: TableReport) -> str:
    return hostile_report.to_html()


def test_hostile_names_are_text(hostile: str) -> None:
    document = Document(hostile)
    assert document.scripts == [{"type": "application/json", "id": "report-data"}, {}]
    assert not [name for name, _ in document.attributes if name.startswith("on") or name in ("style", "src", "srcdoc")]
    assert {value for name, value in document.attributes if name == "href"} <= {
        f"#{name}" for name in ("advice", "versions", "fragments", "columns", "files", "indexes", "properties", "about")
    }
    assert set(document.elements).isdisjoint({"img", "iframe", "object", "embed", "link", "base", "form"})
    shown = "".join(document.texts)
    for name in HOSTILE:
        expected = text.visible(text.shorten(name, 200))
        assert expected.replace(".", "·") in shown or expected in shown


def test_hidden_characters_do_not_reach_the_document(hostile: str) -> None:
    hidden = set(text.visible("\u202e\u2066\u200b\ufeff\x1b\x00\u2028"))
    assert hidden <= set("\\u0123456789abcdef")
    assert not set(hostile) & set("\u202e\u2066\u2069\u200b\ufeff\x1b\x00\u2028")
    hostile.encode("utf-8")


def test_embedded_json_cannot_end_its_script(hostile: str) -> None:
    start = hostile.index('id="report-data">') + len('id="report-data">')
    data = hostile[start : hostile.index("</script>", start)]
    assert not set(data) & set("<>&'") and data.isascii()
    *names, quoted = (row[0] for row in json.loads(data)["tables"]["columns-table"])
    assert names == [text.visible(text.shorten(name.replace(".", "·"))) for name in HOSTILE[:-1]]
    assert quoted == "`$(touch hacked) ``touch hacked`` 'quoted'`"  # a path, in which some names are quoted


def test_the_policy_permits_the_style_and_the_script_only(hostile: str) -> None:
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', hostile)
    style, script = Document(hostile).contents["style"], Document(hostile).contents["script"][1:]
    digests = [base64.b64encode(hashlib.sha256("".join(parts).encode()).digest()).decode() for parts in (style, script)]
    assert html.unescape(policy).split("; ") == [
        "default-src 'none'",
        f"style-src 'sha256-{digests[0]}'",
        f"script-src 'sha256-{digests[1]}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]


def test_the_document_refers_to_no_other_file(hostile: str) -> None:
    names = {name for name, _ in Document(hostile).attributes}
    assert names.isdisjoint({"src", "srcset", "action", "data", "poster", "background", "xlink:href", "formaction"})
    for name in ("report.css", "report.js"):
        content = (Path(render.__file__).parent / "templates" / name).read_text()
        assert "url(" not in content and "@import" not in content and "fetch(" not in content and "http" not in content


def test_the_notebook_frame_is_one_element(hostile_report: TableReport) -> None:
    frame = Document(hostile_report._repr_html_())
    assert frame.elements == ["iframe"]
    attributes = dict(frame.attributes)
    assert attributes["sandbox"] == "allow-scripts"
    assert (attributes["srcdoc"] or "").startswith("<!DOCTYPE html>")


def test_tables_have_captions_and_header_cells(hostile: str) -> None:
    document = Document(hostile)
    assert document.elements.count("table") == document.elements.count("caption") == document.elements.count("thead")
    scopes = [value for name, value in document.attributes if name == "scope"]
    assert len(scopes) == document.elements.count("th") and set(scopes) == {"col", "row"}
    assert document.elements.count("main") == document.elements.count("nav") == document.elements.count("h1") == 1
    ids = [value for name, value in document.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    labels = [value for name, value in document.attributes if name == "aria-labelledby"]
    assert set(labels) <= set(ids)
    roles = [value for name, value in document.attributes if name == "role"]
    assert document.elements.count("svg") == roles.count("img") > 0


def test_the_size_of_a_large_report_is_bounded(tmp_path: Path) -> None:
    report = many_fragments(tmp_path / "t.lance").report()
    document = report.to_html()
    assert len(document) < 3_000_000
    assert Document(document).elements.count("tr") < 400
    assert document.count("<rect") < 2000


def test_rendering_is_pure(tmp_path: Path) -> None:
    report = many_fragments(tmp_path / "t.lance", 10).report()
    assert report.to_html() == report.to_html()


def test_without_jinja2_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = many_fragments(tmp_path / "t.lance", 2).report()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    render._environment.cache_clear()
    with pytest.raises(MissingPackageError, match=r"pip install 'lancetable\[report\]'"):
        report.to_html()
    assert report.to_json()
    monkeypatch.undo()
    assert report.to_html()


def test_a_report_can_be_rendered_from_any_store() -> None:
    lance.write_dataset({"a": [1]}, "memory://report/t", mode="overwrite")
    report = lance.dataset("memory://report/t").report()
    assert report.overview.uri == "memory://report/t" and report.problems == ()
    assert "<h1><bdi>t</bdi></h1>" in report.to_html()


SIZES: list[tuple[int | None, str]] = [
    (None, "–"),
    (0, "0 B"),
    (1023, "1023 B"),
    (1024, "1.00 KiB"),
    (10_235, "10.0 KiB"),
    (1_048_575, "1.00 MiB"),
    (123_456_789, "118 MiB"),
    (2**60, "1.00 EiB"),
    (2**80, "1,048,576 EiB"),
]


@pytest.mark.parametrize(("num_bytes", "expected"), SIZES)
def test_sizes_have_three_digits(num_bytes: int | None, expected: str) -> None:
    assert text.size(num_bytes) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a", "a"), ("é 漢 😀", "é 漢 😀"), ("a\nb", "a\\u000ab"), ("\u202ex", "\\u202ex"), ("\udcff", "\\udcff")],
)
def test_hidden_characters_are_shown_by_number(value: str, expected: str) -> None:
    assert text.visible(value) == expected


def test_long_text_is_cut_in_the_middle() -> None:
    assert text.shorten("x" * 200) == "x" * 200
    assert text.shorten("a" * 300 + "b" * 300, 10) == "aaaa … bbbb (600 characters)"


@pytest.mark.parametrize(
    ("part", "whole", "expected"), [(0, 0, "–"), (0, 5, "0 %"), (1, 200, "0.5 %"), (1, 3, "33 %"), (5, 5, "100 %")]
)
def test_shares_are_percentages(part: float, whole: float, expected: str) -> None:
    assert text.share(part, whole) == expected


def test_column_sets_have_unique_names() -> None:
    names = [set_name(number) for number in range(60)]
    assert names[:2] == ["A", "B"] and names[26] == "A1" and len(set(names)) == 60
