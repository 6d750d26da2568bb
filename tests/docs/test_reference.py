"""The reference is complete: commands, options, errors, environment variables, log records, names of pylance."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

import lancetable
from lancetable import errors, scope
from lancetable.cli.commands import cli
from lancetable.store.clouds import options as cloud_options
from scripts.reference_pages import (
    api,
    command_line,
    compatibility,
    known_limits,
    log_records,
    spark_options,
    storage_options,
)
from scripts.reference_pages import errors as error_page
from tests.signatures import CLASSES, FUNCTIONS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "lancetable"
# Root modules without names for users: helpers of the public modules, and modules of pylance that are out of scope.
NOT_PUBLIC = {
    "argument_validation",
    "compiled",
    "dataset_indexes",
    "dataset_vector_indexes",
    "html",
    "lazy",
    "pydantic_models",
    "scope",
    "tabular_input",
    "telemetry",
    "vector_index_arguments",
    *scope.missing_names(scope.MODULES),
}


def sections(page: str) -> dict[str, str]:
    """Return the text of each section of the second level by its title."""
    parts = re.split(r"^## (.*)\n", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    for inner, each in command.commands.items():
        yield from leaves(each, f"{name} {inner}")


@pytest.mark.parametrize(("name", "command"), list(leaves(cli, "lancetable")), ids=lambda value: str(value))
def test_every_command_is_described_with_all_options(name: str, command: click.Command) -> None:
    found = sections(command_line.page())
    text = found[name] + found["Options of all commands"]
    wanted = [option for each in command.params if isinstance(each, click.Option) for option in each.opts]
    assert [option for option in wanted if f"`{option}`" not in text] == []
    assert command.help and " ".join(command.help.partition("\n\n")[0].split()) in text


def test_exit_codes_are_those_of_the_help() -> None:
    assert cli.help is not None
    codes = re.findall(r"\b([0-9]) if", " ".join(cli.help.split()))
    assert re.findall(r"^\| (\d) \|", command_line.page(), re.MULTILINE) == codes == ["0", "1", "2"]


def test_every_error_has_a_remedy() -> None:
    page = error_page.page()
    assert set(error_page.REMEDIES) == set(errors.__all__)
    assert [name for name in errors.__all__ if f"| `{name}` | " not in page] == []


def test_every_environment_variable_is_described() -> None:
    used: set[str] = set()
    for folder in ("lancetable", "scripts", "tests", "integration"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in ("", ".py", ".pyx", ".sh") and "__pycache__" not in path.parts:
                used.update(re.findall(r"\bLANCETABLE_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8")))
    used.update(re.findall(r"\bLANCETABLE_[A-Z_]*[A-Z]\b", (ROOT / "setup.py").read_text(encoding="utf-8")))
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "environ" in text and "testing" not in path.parts:
            used.update(re.findall(r'"(LANCE_[A-Z_]+|DYNAMODB_[A-Z]+)"', text))
    page = (ROOT / "docs/reference/environment.md").read_text(encoding="utf-8")
    assert {"LANCE_LOG", "LANCETABLE_FSYNC", "LANCETABLE_THREADS", "DYNAMODB_ENDPOINT"} <= used
    assert set(re.findall(r"`((?:LANCETABLE|LANCE|DYNAMODB)_[A-Z_]+)[=`]", page)) == used


def test_every_storage_option_is_described() -> None:
    page = storage_options.page()
    assert set(storage_options.OWN) == cloud_options.OWN_OPTIONS
    for cloud, names in cloud_options.NAMES.items():
        wanted = names | set(cloud_options.SYNONYMS[cloud]) | set(cloud_options.ENVIRONMENT[cloud])
        assert [name for name in wanted | cloud_options.CLIENT_NAMES if f"`{name}`" not in page] == []


def test_every_option_of_the_data_source_is_described() -> None:
    source = (PACKAGE / "spark/options.py").read_text(encoding="utf-8")
    names = re.findall(r'= _option\("(\w+)"', source)
    page = spark_options.page()
    assert len(names) > 20 and [name for name in names if f"| `{name}` | " not in page] == []


def test_every_option_of_the_pipeline_command_is_described() -> None:
    source = (PACKAGE / "spark/__main__.py").read_text(encoding="utf-8")
    page = (ROOT / "docs/reference/spark-pipelines.md").read_text(encoding="utf-8")
    options = re.findall(r'"(--[a-z-]+)"', source)
    assert len(options) == 5 and [option for option in options if f"[{option}" not in page] == []


def test_every_log_record_is_listed() -> None:
    calls = 0
    for path in PACKAGE.rglob("*.py"):
        if "testing" not in path.parts:
            source = path.read_text(encoding="utf-8")
            calls += len(re.findall(r"\blogger\.(?:debug|info|warning|error)\(", source))
    assert len(list(log_records.records())) == calls > 40


def test_known_limits_are_those_of_the_architecture() -> None:
    assert known_limits.page().count("\n- ") >= 10


def test_every_name_of_pylance_is_listed() -> None:
    page = compatibility.page()
    names = [name for group in (FUNCTIONS, CLASSES) for module in group.values() for name in module]
    assert [name for name in names if not re.search(rf"[`. ]{name}\b", page)] == []
    assert [name for names in compatibility.TRAINING.values() for name in names if f".{name}` | yes" not in page] == []
    groups = (scope.DATASET, scope.MODULE, scope.VECTOR, scope.TORCH, scope.TORCH_DATA)
    missing = [name for group in groups for name in scope.missing_names(group)]
    assert [name for name in missing if f".{name}` | " not in page] == []


def test_every_public_module_and_name_has_a_page() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")} - NOT_PUBLIC - {"__init__", "__main__"}
    assert modules - set(api.MODULES) == set()
    modules = [module for module in api.MODULES if not module.startswith(("spark", "torch"))]  # need optional packages
    pages = [vars(import_module(f"lancetable.{module}")) for module in modules]
    names = [name for name in lancetable.__all__ if callable(getattr(lancetable, name))]
    assert [name for name in names if not any(name in page for page in pages)] == []
    assert all(api.summary(module) for module in api.MODULES)
