"""Lazy properties, computed on first access, and lazy names of modules, imported on first access."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


class lazy_property(Generic[T]):  # noqa: N801  # used as a decorator, like property
    """Property whose value is computed on first access and kept in the `__dict__` of the instance.

    It has no lock, because a child that is forked while another thread holds a lock would wait forever, as with
    functools.cached_property before Python 3.12. Threads may compute the value more than once, but all of them get the
    same one.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        value: T = instance.__dict__.setdefault(self._name, self._compute(instance))
        return value


def lazy_names(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module, which imports names on first access.

    `homes` maps each module or package to its names, separated by spaces. Repeat the imports below `if TYPE_CHECKING`
    for type checkers.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(__import__(home_of[name], fromlist=[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    return load
