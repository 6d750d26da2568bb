"""The public names are those of pylance, with its signatures; unsupported names raise UnsupportedFeatureError."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pytest

import lancetable
from lancetable import scope
from lancetable.errors import UnsupportedFeatureError

sys.path.insert(0, str(Path(__file__).parent))
import shim
import signatures

GOLDEN = json.loads((Path(__file__).parent / "golden" / "pylance_signatures.json").read_text())
GAPS = {
    "LanceDataset": scope.DATASET,
    "LanceScanner": scope.SCANNER,
    "dataset.ScannerBuilder": scope.SCANNER_BUILDER,
    "dataset.MergeInsertBuilder": scope.MERGE_INSERT,
}
# (name, parameter): our default and why it differs.
OTHER_DEFAULTS = {
    ("set_logger", "file_path"): "'lancetable.log'",
    ("set_logger", "name"): "'lancetable'",
    ("commit.CommitConflictError.__init__", "retryable"): "None",  # the class decides
    ("fragment.DataFile.__init__", "column_indices"): "None",
    ("LanceDataset.create_scalar_index", "document_granularity"): "None",  # full text search is out of scope
}
# Constructors that users never call; those of lancetable take other arguments.
OWN_CONSTRUCTORS = {"LanceScanner", "dataset.Tags", "fragment.FragmentSession", "file.ReaderResults"}
# Parameters that we leave out: unknown keywords are an error here, not ignored.
LEFT_OUT = {("file.LanceFileWriter.__init__", "**")}
MISSING_CLASSES = {"dataset.Branches"}


def find(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(f"lancetable.{module}" if module else "lancetable"), attribute)


def members() -> list[tuple[str, str, Any]]:
    return [
        (owner, name, expected)
        for owner, described in GOLDEN.items()
        if isinstance(described, dict) and owner not in MISSING_CLASSES
        for name, expected in described.items()
    ]


def check_signature(label: str, function: Any, expected: list[list[str]]) -> None:
    ours = signatures.describe(function)
    assert ours is not None
    wanted = [
        [name, kind, OTHER_DEFAULTS.get((label, name), default)]
        for name, kind, default in expected
        if (label, name) not in LEFT_OUT
    ]
    extra = [parameter for parameter in ours if parameter[0] not in {name for name, _, _ in wanted}]
    assert [parameter for parameter in ours if parameter not in extra] == wanted
    assert all(kind in ("KEYWORD_ONLY", "VAR_KEYWORD") or default for _, kind, default in extra), extra


def test_golden_signatures_match_the_installed_pylance() -> None:
    pytest.importorskip("lance")
    assert signatures.describe_package("lance") == GOLDEN


@pytest.mark.parametrize("name", [name for name, described in GOLDEN.items() if isinstance(described, list)])
def test_function_has_the_signature_of_pylance(name: str) -> None:
    check_signature(name, find(name), GOLDEN[name])


@pytest.mark.parametrize(
    ("owner", "name", "expected"), members(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_member_has_the_signature_of_pylance(owner: str, name: str, expected: Any) -> None:
    cls = find(owner)
    if name in scope.missing_names(GAPS.get(owner, {})):
        static = inspect.getattr_static(cls, name)
        raising = static.fget if isinstance(static, property) else static
        with pytest.raises(UnsupportedFeatureError, match=name):
            raising(None)
        return
    if expected == "property":
        assert (
            any(name in base.__dict__ for base in cls.__mro__ if base.__module__.startswith("lancetable."))
            or name in {field for base in cls.__mro__ for field in getattr(base, "__slots__", ())}
            or (name in getattr(cls, "__dataclass_fields__", {}))
        )
    elif isinstance(expected, dict):
        nested = getattr(cls, name)
        if expected.get("__init__"):
            check_signature(f"{owner}.{name}.__init__", nested.__init__, expected["__init__"])
    elif expected is None or (name == "__init__" and owner in OWN_CONSTRUCTORS):
        assert callable(getattr(cls, name))
    else:
        check_signature(f"{owner}.{name}", getattr(cls, name), expected)


@pytest.mark.parametrize(
    ("base", "ours"),
    [
        (pads.Dataset, lancetable.LanceDataset),
        (pads.Scanner, lancetable.LanceScanner),
        (pads.Fragment, lancetable.LanceFragment),
    ],
)
def test_every_name_of_the_arrow_base_class_is_overridden(base: type, ours: type) -> None:
    # Inherited methods would access an Arrow object that does not exist, and crash the process.
    inherited = [name for name in dir(base) if not name.startswith("__") and name not in ours.__dict__]
    assert inherited == []


def test_gap_tables_contain_only_missing_names() -> None:
    for owner, groups in GAPS.items():
        cls = find(owner)
        for name in scope.missing_names(groups):
            static = inspect.getattr_static(cls, name)
            raising = static.fget if isinstance(static, property) else static
            assert raising.__doc__.startswith("Not supported"), f"{owner}.{name} is built: take it out of the table"
    for name in scope.missing_names(scope.MODULE):
        assert name not in vars(lancetable), f"{name} is built: take it out of the table"


def test_module_stubs_can_be_imported_and_raise() -> None:
    for name in scope.missing_names(scope.MODULE):
        with pytest.raises(NotImplementedError, match="out of scope"):
            getattr(lancetable, name)()
    assert not hasattr(lancetable, "no_such_name")


@pytest.mark.parametrize("name", scope.missing_names(scope.MODULES))
def test_a_module_that_is_out_of_scope_states_so_when_it_is_imported(name: str) -> None:
    expected = f"^lancetable.{name}: lancetable does not support .* \\(out of scope\\)"
    for statement in (
        f"import lancetable.{name}",
        f"from lancetable import {name}",
        f"from lancetable.{name}.data import x",
    ):
        with pytest.raises(ImportError, match=expected):
            exec(statement)
    with pytest.raises(AttributeError, match=expected):
        getattr(lancetable, name)


def test_features_in_the_plural_read_correctly(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(pa.table({"a": [1]}), tmp_path / "t")
    with pytest.raises(NotImplementedError) as caught:
        ds.create_scalar_index("a", "IVF_PQ")
    expected = "index_type 'IVF_PQ': lancetable does not support vector indexes here (out of scope)"
    assert str(caught.value) == f"{expected}; use create_index"


@pytest.mark.parametrize("name", ["full_text_query"])
@pytest.mark.parametrize("method", ["scanner", "to_table", "to_batches", "count_rows"])
def test_a_search_argument_is_named_as_the_caller_wrote_it(tmp_path: Path, method: str, name: str) -> None:
    ds = lancetable.write_dataset(pa.table({"a": [1]}), tmp_path / "t")
    with pytest.raises(NotImplementedError, match=f"^argument {name}: lancetable does not support"):
        getattr(ds, method)(**{name: {"column": "a"}})


def test_all_lists_names_that_exist() -> None:
    assert len(set(lancetable.__all__)) == len(lancetable.__all__)
    for name in lancetable.__all__:
        assert getattr(lancetable, name) is not None


def test_public_names_of_pylance_exist() -> None:
    lance = pytest.importorskip("lance")
    for name in lance.__all__:
        if name != "io":
            assert hasattr(lancetable, name), name


NEVER_WITH_A_READ = [
    "sqlglot",
    "polars",
    "duckdb",
    "pyspark",
    "click",
    "rich",
    "tqdm",
    "s3fs",
    "fsspec",
    "obstore",
    "boto3",
    "torch",
    "datasets",
]
NOT_WITH_A_READ = [
    *("lancetable.commit", "lancetable.expr.syntax", "lancetable.rowids", "lancetable.operation", "lancetable.writes"),
    *(
        "lancetable.file.encodings_v0_1.field_readers",
        "lancetable.file.encodings_v2_0.field_readers",
        "lancetable.file.writer",
    ),
    *("lancetable.ops.change", "lancetable.ops.maintain", "lancetable.ops.write", "lancetable.ops.schema"),
]
NEVER_IN_A_SPARK_TASK = ["pandas", "pyarrow.dataset", "lancetable.dataset", "sqlglot"]


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import lancetable", [*NEVER_WITH_A_READ, "pandas", "numpy", "pyarrow", "google", "lancetable.dataset"]),
        ("import lancetable.expr.typing.binder, lancetable.ops.read.scan", ["pandas", "pyarrow.dataset", "sqlglot"]),
        ("import lancetable; lancetable.dataset(path).to_table()", NEVER_WITH_A_READ + NOT_WITH_A_READ),
        ("import lancetable; lancetable.dataset(path).take([0])", NEVER_WITH_A_READ + NOT_WITH_A_READ),
        ("import lancetable.cli.commands", ["pyarrow", "rich", "lancetable.dataset", "lancetable.store"]),
        ("import lancetable.spark.data_source", ["pyarrow.dataset", "lancetable.table", "lancetable.ops.read"]),
        ("import lancetable.spark.reader", NEVER_IN_A_SPARK_TASK),
        ("import lancetable.spark.writer", NEVER_IN_A_SPARK_TASK),
    ],
    ids=lambda value: value.rpartition(".")[2] if isinstance(value, str) else "",
)
def test_only_what_is_needed_is_imported(tmp_path: Path, code: str, unwanted: list[str]) -> None:
    for part, package in (("lancetable.cli", "click"), ("lancetable.spark", "pyspark")):
        if part in code:
            pytest.importorskip(package)
    path = str(tmp_path / "t.lance")
    lancetable.write_dataset(pa.table({"id": [1, 2], "name": ["a", "b"]}), path)
    program = f"import sys; path = {path!r}; {code}; print([name for name in {unwanted} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "statement",
    [
        "import lancetable; import lancetable.dataset",
        "import lancetable.dataset",
        "from lancetable.dataset import LanceDataset; import lancetable",
        "import lancetable; lancetable.LanceDataset",
        "import lancetable; dir(lancetable); from lancetable import *",
    ],
)
def test_dataset_is_the_function_however_its_module_is_imported(statement: str) -> None:
    program = f"{statement}; import sys; print(lancetable.dataset is sys.modules['lancetable.dataset'].dataset)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "True"


def test_dataset_can_be_replaced_like_any_other_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lancetable, "dataset", len)
    assert lancetable.dataset is len


def test_dir_lists_the_public_names() -> None:
    assert set(lancetable.__all__) <= set(dir(lancetable))


def test_shim_runs_code_written_for_pylance(tmp_path: Path) -> None:
    with shim.installed():
        import lance
        import lance.fragment
        from lance.commit import CommitConflictError
        from lance.dataset import LanceDataset, LanceOperation
        from lance.schema import LanceSchema

        assert lance.LanceDataset is lancetable.LanceDataset is LanceDataset
        table = pa.table({"a": [1, 2, 3]})
        dataset = lance.write_dataset(table, tmp_path / "t")
        fragments = lance.fragment.write_fragments(table, str(tmp_path / "t"))
        committed = lance.LanceDataset.commit(dataset, LanceOperation.Append(fragments), read_version=1)
        assert lance.dataset(str(tmp_path / "t")).to_table(columns=["a"], filter="a > 1").num_rows == 4
        assert isinstance(committed.lance_schema, LanceSchema)
        assert issubclass(CommitConflictError, OSError)
    script = tmp_path / "script.py"
    script.write_text("import lance, sys; print(lance.__name__, sys.argv)")
    command = [sys.executable, shim.__file__, str(script), "x"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0] == "lancetable"


def test_shim_without_pytorch_has_no_torch_module() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from tests import shim\n"
        "with shim.installed(): print('lance.dataset' in sys.modules, 'lance.torch' in sys.modules)"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_a_shim_that_cannot_be_installed_leaves_the_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim.pkgutil, "iter_modules", lambda *_: [types.SimpleNamespace(name="lancetable.no_such")])
    monkeypatch.setitem(sys.modules, "lance.marker", sys)
    with pytest.raises(ModuleNotFoundError), shim.installed():
        raise AssertionError
    assert sys.modules["lance.marker"] is sys
