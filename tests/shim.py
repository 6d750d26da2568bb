"""Make `import lance` mean `lancetable`, to run code and test-suites written for pylance.

    python tests/shim.py script.py [arguments]      or      import shim; shim.install()

Modules of pylance that lancetable lacks stay missing, as do modules whose packages are not installed. Names that it
lacks raise when they are called.
"""

from __future__ import annotations

import importlib
import pkgutil
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

HIDDEN = ("lancetable.proto", "lancetable.cli", "lancetable.spark", "lancetable.testing")


def aliases() -> dict[str, ModuleType]:
    """Return `lance` and `lance.<module>` for every root module of lancetable."""
    package = importlib.import_module("lancetable")
    found = {"lance": package}
    hidden = {*HIDDEN, *(f"lancetable.{name}" for name in package.scope.missing_names(package.scope.MODULES))}
    for info in pkgutil.iter_modules(package.__path__, "lancetable."):
        if info.name not in hidden:
            with suppress(package.errors.MissingPackageError):
                found["lance" + info.name[len("lancetable") :]] = importlib.import_module(info.name)
    return found


def install() -> None:
    """Install the aliases in `sys.modules`; an imported pylance is replaced."""
    modules = aliases()
    for name in [name for name in sys.modules if name == "lance" or name.startswith("lance.")]:
        del sys.modules[name]
    sys.modules.update(modules)


@contextmanager
def installed() -> Iterator[None]:
    """Install the aliases for the duration of the block."""
    before = {name: module for name, module in sys.modules.items() if name == "lance" or name.startswith("lance.")}
    install()
    try:
        yield
    finally:
        for name in aliases():
            sys.modules.pop(name, None)
        sys.modules.update(before)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    install()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
