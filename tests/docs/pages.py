"""Code blocks of the documentation, run by Sybil.

    ```python                        executed; the blocks of a page share a namespace and a directory
    ```python title="orders.py"      stored as this file in the directory of the page; any other language too
    ```text title="Output"           output of the Python block above; `...` matches anything, and so do times and UUIDs
    ```console                       commands after `$`, with their output; a failing one is followed by `$ echo $?`
    ```bash, ```text and others      not executed: installations, scripts of the checkout, formats
    <!-- skip: next "reason" -->     the next block is not executed

A Python block that prints without an output block below is an error.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
import unittest
from collections.abc import Iterable
from pathlib import Path

from sybil import Document, Example, Region, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import SkipParser
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
COMPARISON = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
LANGUAGES = {"python", "console", "text", "bash", "sql", "toml", "csv", "json"}
_INFO = re.compile(r'(?P<language>\w*)(?: title="(?P<title>[^"]*)")?(?P<rest>[^\n]*)\n')
# Values that differ in each run; a page shows those of one run.
_VARIABLE = {
    "TIME": re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?:\+00:00)?"),
    "UUID": re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"),
}
_lex = RawFencedCodeBlockLexer(_INFO)


def page_names() -> list[str]:
    """Return the paths of all pages, relative to the checkout."""
    return ["README.md", *sorted(str(page.relative_to(ROOT)) for page in DOCS.rglob("*.md"))]


def blocks(document: Document) -> Iterable[Region]:
    """Yield the code blocks of a page.

    Raises
    ------
    ValueError
        If the first line of a block has an unknown language or more than a language and a title.
    """
    for region in _lex(document):
        if region.lexemes["language"] not in LANGUAGES or region.lexemes["rest"].strip():
            place = f"{document.path}, {document.line_column(region.start)}"
            raise ValueError(f"{place}: expected one of {', '.join(sorted(LANGUAGES))}, and at most a title")
        region.parsed = region.lexemes["source"]
        yield region


class Page:
    """The evaluation of one page in the current directory."""

    def __init__(self, name: str) -> None:
        self._output: str | None = None
        self._execute = PythonEvaluator()
        self.document = Sybil([self._parse, SkipParser()], pattern="*.md").parse(ROOT / name)
        self.document.namespace["__name__"] = "__main__"

    def run(self) -> None:
        """Evaluate all blocks in order."""
        for example in self.document.examples():
            with contextlib.suppress(unittest.SkipTest):
                example.evaluate()
        self._check_nothing_printed()

    def _parse(self, document: Document) -> Iterable[Region]:
        for region in blocks(document):
            language, title = region.lexemes["language"], region.lexemes["title"]
            if title == "Output":
                region.evaluator = self._compare
            elif title is not None:
                region.evaluator = _store
            elif language in ("python", "console"):
                region.evaluator = self._python if language == "python" else self._console
            else:
                continue
            yield region

    def _python(self, example: Example) -> None:
        self._check_nothing_printed()
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            self._execute(example)
        self._output = printed.getvalue()

    def _compare(self, example: Example) -> str | None:
        printed, self._output = self._output, None
        if printed is None:
            return "an output block must follow the Python block that prints it"
        return difference(example.parsed, printed)

    def _check_nothing_printed(self) -> None:
        printed, self._output = self._output, None
        assert not printed, f"the page does not show the output of a Python block:\n{printed}"

    def _console(self, example: Example) -> str | None:
        self._check_nothing_printed()
        return run_console(example.parsed)


def _store(example: Example) -> None:
    path = Path(example.region.lexemes["title"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(example.parsed, encoding="utf-8")


def run_console(text: str) -> str | None:
    """Run the commands of a block and return the first difference to the shown output, or None."""
    code = 0
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        command = lines.pop(0)
        while command.endswith("\\\n"):
            command += lines.pop(0)
        if code and not command.startswith("echo $?"):
            return f"the command before {command!r} failed with {code}; show it with: echo $?"
        done = subprocess.run(
            ["bash", "-c", f"(exit {code})\n{command}"],
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        code = done.returncode
        found = difference("".join(lines), done.stdout)
        if found:
            return f"$ {command}{found}"
    return f"the last command failed with {code}; show it with: echo $?" if code else None


def _environment() -> dict[str, str]:
    """Return the environment of commands: this interpreter and its commands first, and the library under test."""
    paths = {"PATH": Path(sys.executable).parent, "PYTHONPATH": ROOT}
    first = {name: f"{path}{os.pathsep}{os.environ.get(name, '')}".rstrip(os.pathsep) for name, path in paths.items()}
    return {**os.environ, **first, "PYTHONWARNINGS": "ignore"}


def difference(shown: str, printed: str) -> str | None:
    """Return a message if the printed text differs from the shown one, otherwise None."""
    for name, pattern in _VARIABLE.items():
        shown, printed = pattern.sub(name, shown), pattern.sub(name, printed)
    checker = doctest.OutputChecker()
    if checker.check_output(shown.strip(), printed.strip(), COMPARISON):
        return None
    example = doctest.Example("", shown)
    return checker.output_difference(example, printed, COMPARISON | doctest.REPORT_NDIFF)
