"""Registration of encodings from other packages, by type url of a page or by oneof case of the format's messages."""

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
    """Register an encoding for all readers and writers of this process. Usable as a class decorator.

    Parameters
    ----------
    encoding
        A class with a `type_url` is a `PageEncoding` (see lancetable/file/custom.py): it stores whole pages of a column
        in files of any version from 2.0 on. The writer uses it for columns whose field metadata maps
        `lancetable:encoding` to the type url.

        A class with an `arm` decodes that oneof case of the format's own messages: it is an `ArrayEncoding` for family
        "2.0", and a `Layout` or `Compressive` for family "2.1".
    family
        The encoding family of an `arm`: "2.0" or "2.1". Family "2.1" includes files of version 2.2.
    replace
        Replace a registered encoding instead of raising AlreadyExistsError.

    Returns
    -------
    type
        `encoding`.

    Raises
    ------
    AlreadyExistsError
        If an encoding is registered for the type url or oneof case and `replace` is False.
    InvalidInputError
        If the class has neither attribute, lacks methods, or the family or oneof case does not exist.
    """
    if hasattr(encoding, "type_url"):
        custom.register_page_encoding(encoding, replace)
        return encoding
    registry = _registry_of(getattr(encoding, "arm", None), family)
    if encoding.arm in registry and not replace:
        raise AlreadyExistsError(
            f"an encoding for {encoding.arm!r} is already registered: {registry[encoding.arm].__name__};"
            " pass replace=True"
        )
    registry[encoding.arm] = encoding
    custom.changed()
    return encoding


def unregister_encoding(encoding: type[Any], *, family: str = "2.1") -> None:
    """Unregister an encoding. Reading files that need it raises UnsupportedFeatureError from then on.

    Parameters
    ----------
    encoding
        The class passed to `register_encoding`.
    family
        The family passed to `register_encoding`.

    Raises
    ------
    InvalidInputError
        If the encoding is not registered.
    """
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
        raise InvalidInputError(f"family must be one of {sorted(_FAMILIES)}, got {family!r}")
    for oneof, registry in _FAMILIES[family]:
        if any(field.name == arm for field in oneof.fields):
            return registry
    raise InvalidInputError(f"expected a class with a type_url or with an arm of family {family}, got arm {arm!r}")
