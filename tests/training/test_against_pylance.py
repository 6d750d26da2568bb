"""The same arguments give the same batches, tensors and signatures as pylance's `lance.torch`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable import scope
from scripts.reference_pages import compatibility

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'lancetable[torch]'")
lance = pytest.importorskip("lance", reason="pylance is not installed")
for _module in ("lance.torch.data", "lancetable.torch.data"):
    importlib.import_module(_module)

pytestmark = pytest.mark.filterwarnings(
    "ignore:The given NumPy array is not writable:UserWarning",
    "ignore:rank and world_size are deprecated:DeprecationWarning",
    "ignore:with_row_id is not supported for ShardedBatchSampler:UserWarning",
)
NUM_ROWS = 200


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a table of pylance with fragments of 40 rows, so that batches of 10 rows do not cross fragments."""
    generator = np.random.default_rng(0)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(generator.standard_normal(NUM_ROWS * 4).astype(np.float32)), 4)
    table = pa.table({"id": range(NUM_ROWS), "x": generator.standard_normal(NUM_ROWS), "v": vectors})
    path = str(tmp_path_factory.mktemp("table") / "t.lance")
    lance.write_dataset(table, path, max_rows_per_file=40)
    return path


def batches(library: Any, path: str, **arguments: Any) -> list[Any]:
    return list(library.torch.data.LanceDataset(path, **arguments))


def assert_equal(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert type(mine) is type(other)
        for name in mine if isinstance(mine, dict) else [...]:
            assert torch.equal(mine[name], other[name]) and mine[name].dtype == other[name].dtype
        if isinstance(mine, dict):
            assert list(mine) == list(other)


@pytest.mark.parametrize("columns", [None, ["id"], ["v", "id"]], ids=str)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"with_row_id": True},
        {"rank": 0, "world_size": 2},
        {"rank": 1, "world_size": 2, "shard_granularity": "fragment"},
        {"rank": 1, "world_size": 3, "shard_granularity": "batch"},
        {"shard_granularity": "batch"},
        {"samples": 1000},
        {"auto_detect_rank": False},
        {"dataset_options": {"version": 1}},
        {"cache": True},
    ],
    ids=str,
)
def test_batches_are_equal(path: str, columns: Any, arguments: dict[str, Any]) -> None:
    arguments = {"batch_size": 10, "columns": columns, **arguments}
    assert_equal(batches(lancetable, path, **arguments), batches(lance, path, **arguments))


def test_batches_of_expressions_are_equal(path: str) -> None:
    for arguments in ({}, {"filter": "id < 150"}, {"rank": 0, "world_size": 2}):
        arguments = {"batch_size": 10, "columns": {"id": "id * 2"}, **arguments}
        assert_equal(batches(lancetable, path, **arguments), batches(lance, path, **arguments))


def test_rows_are_equal_where_batches_of_pylance_are_short(path: str) -> None:
    for arguments in ({"batch_size": 7}, {"batch_size": 10, "filter": "id % 3 = 0"}, {"batch_size": 64}):
        ours, theirs = (batches(library, path, columns=["id"], **arguments) for library in (lancetable, lance))
        assert torch.equal(torch.cat(ours), torch.cat(theirs)) and len(ours) <= len(theirs)


def test_batches_of_a_sampler_are_equal(path: str) -> None:
    samplers = [("FullScanSampler", ()), ("ShardedFragmentSampler", (1, 2)), ("ShardedBatchSampler", (0, 3))]
    for name, arguments in samplers:
        ours, theirs = (
            batches(library, path, batch_size=10, sampler=getattr(module, name)(*arguments))
            for library, module in (
                (lancetable, importlib.import_module("lancetable.sampler")),
                (lance, importlib.import_module("lance.sampler")),
            )
        )
        assert_equal(ours, theirs)


def test_rows_by_number_are_equal(path: str) -> None:
    ours, theirs = (library.torch.data.SafeLanceDataset(path) for library in (lancetable, lance))
    assert len(ours) == len(theirs)
    assert ours[17] == theirs[17] and ours.__getitems__([5, 100, 5]) == theirs.__getitems__([5, 100, 5])


SIGNATURES = [(module, name) for module, names in compatibility.TRAINING.items() for name in names]


@pytest.mark.parametrize(("module", "name"), SIGNATURES, ids=lambda value: value)
def test_functions_have_the_parameters_of_pylance(module: str, name: str) -> None:
    """Ours refuse unknown arguments, and may have further ones after those of pylance."""
    ours, theirs = (
        inspect.signature(getattr(importlib.import_module(f"{library}.{module}"), name)).parameters
        for library in ("lancetable", "lance")
    )
    expected = {
        parameter.name: repr(parameter.default)
        for parameter in theirs.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    found = {parameter.name: repr(parameter.default) for parameter in ours.values()}
    expected.pop("to_tensor_fn", None), found.pop("to_tensor_fn", None)  # each its own function
    assert list(found)[: len(expected)] == list(expected) and expected.items() <= found.items()


@pytest.mark.parametrize("name", scope.missing_names(scope.TORCH))
def test_a_module_that_is_out_of_scope_states_so_when_it_is_imported(name: str) -> None:
    for statement in (f"import lancetable.torch.{name}", f"from lancetable.torch import {name}"):
        with pytest.raises(ImportError, match=f"^lancetable.torch.{name}: .* \\(out of scope\\)"):
            exec(statement)


def test_names_and_modules_that_are_out_of_scope_are_those_of_pylance() -> None:
    for name in scope.missing_names(scope.TORCH):
        assert importlib.util.find_spec(f"lance.torch.{name}")
    for name in scope.missing_names(scope.TORCH_DATA):
        assert hasattr(lance.torch.data, name)
        with pytest.raises(NotImplementedError, match="out of scope"):
            getattr(lancetable.torch.data, name)()
