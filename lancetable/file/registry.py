"""The door for encodings of other packages: by the type url of a page, or by an arm of the format's own messages."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from lancetable.errors import AlreadyExistsError, InvalidInputError
from lancetable.file import custom
from lancetable.file.encodings_v2_0.registry import ARMS
from lancetable.file.encodings_v2_1.registry import COMPRESSIVE, LAYOUTS
from lancetable.proto import encodings_v2_0_pb2, encodings_v2_1_pb2

__all__ = ["register_encoding", "unregister_encoding"]

E = TypeVar("E", bound="type[Any]")

_V2_0: Final = encodings_v2_0_pb2.ArrayEncoding.DESCRIPTOR.oneofs_by_name["array_encoding"]
_LAYOUT: Final = encodings_v2_1_pb2.PageLayout.DESCRIPTOR.oneofs_by_name["layout"]
_COMPRESSIVE: Final = encodings_v2_1_pb2.CompressiveEncoding.DESCRIPTOR.oneofs_by_name["compression"]
_FAMILIES: Final = {
    "2.0": ((_V2_0, ARMS),),
    "2.1": ((_LAYOUT, LAYOUTS), (_COMPRESSIVE, COMPRESSIVE)),
}


def register_encoding(encoding: E, *, family: str = "2.1", replace: bool = False) -> E:
    """Make an encoding known to every reader and writer of this process; also a class decorator.

    A class with a `type_url` of its own is a `PageEncoding` (see lancetable/file/custom.py): it stores whole pages of a
    column, in files of any version from 2.0 on. A column is written with it where its field metadata has the key
    `lancetable:encoding` with the type url as value.

    A class with an `arm`, the name of a field in the oneof of a message of the format, decodes what stands there:
    `ArrayEncoding` for `family` "2.0", `Layout` or `Compressive` for "2.1", which also serves 2.2.

    With `replace` it takes the place of one that is registered; else that raises AlreadyExistsError. Raises
    InvalidInputError for a class that is neither and for an arm that the messages do not have.
    """
    if hasattr(encoding, "type_url"):
        custom.register_page_encoding(encoding, replace)
        return encoding
    registry = _registry_of(getattr(encoding, "arm", None), family)
    if encoding.arm in registry and not replace:
        raise AlreadyExistsError(
            f"there is an encoding for {encoding.arm!r} already: {registry[encoding.arm].__name__}"
        )
    registry[encoding.arm] = encoding
    custom.changed()
    return encoding


def unregister_encoding(encoding: type[Any], *, family: str = "2.1") -> None:
    """Take an encoding away again; files that need it are then refused by name. Raises InvalidInputError."""
    if hasattr(encoding, "type_url"):
        custom.forget_page_encoding(encoding.type_url)
        return
    registry = _registry_of(getattr(encoding, "arm", None), family)
    if registry.get(encoding.arm) is not encoding:
        raise InvalidInputError(f"{encoding.__name__} is not registered for {encoding.arm!r}")
    del registry[encoding.arm]
    custom.changed()


def _registry_of(arm: object, family: str) -> dict[str, Any]:
    if family not in _FAMILIES:
        raise InvalidInputError(f"family must be one of {sorted(_FAMILIES)}, not {family!r}")
    for oneof, registry in _FAMILIES[family]:
        if any(field.name == arm for field in oneof.fields):
            return registry
    raise InvalidInputError(f"an encoding has a type_url, or an arm of the messages of {family}; found arm {arm!r}")
