"""Checks of ARCHITECTURE.md against the code: files, functions and folders."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lancetable"
TEXT = (PACKAGE / "ARCHITECTURE.md").read_text(encoding="utf-8")
FILE = r"(?:[\w.]+/)*\w+\.(?:pyx|pxi|proto|py|toml)"


def prose() -> str:
    return re.sub(r"```.*?```", "", TEXT, flags=re.S)


def spans() -> list[str]:
    """Return the strings between backticks, with line breaks as blanks."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose())]


def find(path: str) -> Path | None:
    return next((place / path for place in (PACKAGE, ROOT) if (place / path).is_file()), None)


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return the top-level names of a module, and `Class.member` for each member of its classes."""
    found: set[str] = set()
    waiting: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    while waiting:
        node = waiting.pop()
        found.update(defined_by(node))
        if isinstance(node, ast.ClassDef):
            found.update(f"{node.name}.{name}" for inner in node.body for name in defined_by(inner))
        elif isinstance(node, ast.If):
            waiting += [*node.body, *node.orelse]
    return frozenset(found)


def defined_by(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def modules_of_the_tree() -> dict[str, str]:
    """Return the description of each root module and folder of the tree, relative to the package."""
    tree = re.search(r"## 2\. Tree\n.*?```text\nlancetable/\n(.*?)```", TEXT, re.S)
    assert tree is not None
    found: dict[str, str] = {}
    folders: list[str] = []
    for line in tree[1].splitlines():
        if not line.strip():
            continue
        depth = (len(line) - len(line.lstrip())) // 2 - 1
        name, _, text = line.strip().partition(" ")
        del folders[depth:]
        found["".join(folders) + name] = text.strip()
        if name.endswith("/"):
            folders.append(name)
    return found


@pytest.mark.parametrize("span", sorted({span for span in spans() if re.fullmatch(FILE, span)}))
def test_named_files_exist(span: str) -> None:
    assert find(span) is not None, f"there is no {span}"


@pytest.mark.parametrize("span", sorted({span for span in spans() if re.match(FILE + ": ", span)}))
def test_named_functions_exist(span: str) -> None:
    path, _, names = span.partition(": ")
    place = find(path)
    assert place is not None, f"there is no {path}"
    for name in names.split(", "):
        assert name in names_in(place), f"there is no {name} in {path}"


def test_named_folders_and_scripts_exist() -> None:
    named = {span for span in spans() if re.fullmatch(r"(?:[\w]+/)+\w*", span)}
    assert named
    assert [name for name in named if not any((place / name).exists() for place in (PACKAGE, ROOT))] == ["api/"]


def test_named_private_names_exist() -> None:
    """Private classes such as `_CommitRun.catch_up` are named without their module after its first mention."""
    loop = names_in(PACKAGE / "commit/commit_loop.py")
    for span in spans():
        if span.startswith("_CommitRun."):
            assert span in loop


def test_the_tree_lists_every_root_module_and_folder() -> None:
    tree = modules_of_the_tree()
    folders = {
        str(path.relative_to(PACKAGE)) + "/"
        for path in PACKAGE.rglob("*")
        if path.is_dir() and any(child.suffix in {".py", ".pxi"} for child in path.iterdir())
    }
    present = {path.name for path in PACKAGE.glob("*.py")} | folders
    assert present - tree.keys() == set(), "missing in ARCHITECTURE.md, section 2"
    assert tree.keys() - present == set(), "listed in ARCHITECTURE.md, section 2, but not present"
    assert all(tree.values())


def test_every_module_has_a_summary_line() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "proto" and path.stat().st_size]
    missing = [str(path) for path in modules if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))]
    assert not missing


def test_the_document_stays_short() -> None:
    assert len(TEXT.splitlines()) <= 450


def test_every_folder_has_a_row_in_the_import_table() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    rows = set(re.findall(r"`(\w+)/`", "".join(re.findall(r"^\| (`.*?) \|", TEXT, re.M))))
    assert rows == folders


def test_decisions_are_numbered_without_gaps() -> None:
    section = TEXT.partition("## 4. ")[2].partition("## 5. ")[0]
    numbers = [int(number) for number in re.findall(r"^(\d+)\. \*\*", section, re.M)]
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > 20


def test_the_document_is_not_part_of_the_wheel() -> None:
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    excluded = settings.partition("[tool.setuptools.exclude-package-data]")[2].partition("[tool.ruff]")[0]
    assert 'lancetable = ["ARCHITECTURE.md"]' in excluded
