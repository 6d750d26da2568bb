"""`import lance` as lancetable, with placeholders for the parts of pylance that lancetable does not have.

pylance's test files import names for tests of every kind. A missing name must fail the test that uses it, not the whole
file. Processes that a test starts use this module as well, if they inherit PYTHONPATH.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import shim

NATIVE = "lance.lance"
"""pylance's compiled module: its names are public ones of other modules as well."""


class Absent:
    """Placeholder of a missing name: it can be imported, subclassed and named, and raises when it is called."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")

    def __call__(self, *args: object, **kwargs: object) -> Any:
        raise NotImplementedError(f"lancetable has no {self.__name__}")

    def __mro_entries__(self, bases: object) -> tuple[type, ...]:
        return (object,)


def vec_to_table(data: Any) -> Any:
    """Return vectors, a list or an array of shape (n, d), as a column "vector", which many tests use as data."""
    import numpy as np
    import pyarrow as pa

    vectors = np.asarray(data, dtype=np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    return pa.table({"vector": column})


HELPERS = {"lance.vector.vec_to_table": vec_to_table}


class AbsentModule(ModuleType):
    """Placeholder of a module that lancetable does not have."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__ == NATIVE:
            for module in shim.aliases().values():
                if name in vars(module):
                    return vars(module)[name]
        path = f"{self.__name__}.{name}"
        return HELPERS.get(path, Absent(path))


class AbsentModules(MetaPathFinder, Loader):
    """Finder of every `lance.<module>` that the shim does not provide."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.startswith("lance.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def install() -> None:
    """Install the stand-ins."""
    shim.install()
    # pylance's datasets contain a native dataset, whose methods some tests call.
    sys.modules["lance"].LanceDataset._ds = property(lambda dataset: dataset)
    sys.meta_path.insert(0, AbsentModules())
    for alias, module in shim.aliases().items():
        inherited = vars(module).get("__getattr__")

        def absent(name: str, alias: str = alias, inherited: Any = inherited) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            with suppress(AttributeError, ImportError):
                if inherited is not None:
                    return inherited(name)
            return Absent(f"{alias}.{name}")

        vars(module)["__getattr__"] = absent
