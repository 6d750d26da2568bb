"""Registration of encodings from other packages, by type url or by oneof case of the messages of the format."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from lancetable.errors import AlreadyExistsError, InvalidInputError
from lancetable.file import custom_encodings
from lancetable.file.encodings_v2_0.registry import ENCODINGS
from lancetable.file.encodings_v2_1.registry import COMPRESSIVE, LAYOUTS
from lancetable.proto import encodings_v2_0_pb2, encodings_v2_1_pb2

E = TypeVar("E", bound="type[Any]")

_V2_0: Final = encodings_v2_0_pb2.ArrayEncoding.DESCRIPTOR.oneofs_by_name["array_encoding"]
_LAYOUT: Final = encodings_v2_1_pb2.PageLayout.DESCRIPTOR.oneofs_by_name["layout"]
_COMPRESSIVE: Final = encodings_v2_1_pb2.CompressiveEncoding.DESCRIPTOR.oneofs_by_name["compression"]
_FAMILIES: Final = {
    "2.0": ((_V2_0, ENCODINGS),),
    "2.1": ((_LAYOUT, LAYOUTS), (_COMPRESSIVE, COMPRESSIVE)),
}


def register_encoding(encoding: E, *, family: str = "2.1", replace: bool = False) -> E:
    """Register an encoding for all readers and writers of this process.

    The function can be used as a class decorator.

    Parameters
    ----------
    encoding
        A class with a `type_url` is a `PageEncoding`: it stores whole pages of a column in files of any version from
        2.0 on. The writer uses it for columns whose field metadata maps `lancetable:encoding` to the type url.

        A class with a `oneof_case` decodes that oneof case of the format's own messages: it is an `ArrayEncoding` for
        family "2.0", and a `Layout` or `Compressive` for family "2.1".
    family
        The encoding family of a `oneof_case`: "2.0" or "2.1". Family "2.1" includes files of version 2.2.
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

    Examples
    --------
    >>> import numpy as np
    >>> import pyarrow as pa
    >>> from lancetable.file import register_encoding, unregister_encoding
    >>> @register_encoding
    ... class Reversed:
    ...     type_url = "example.org/Reversed"
    ...
    ...     @classmethod
    ...     def encode(cls, array):
    ...         return cls(), [array.to_numpy()[::-1].tobytes()]
    ...
    ...     def decode(self, buffers, length, data_type):
    ...         return pa.array(np.frombuffer(buffers[0], data_type.to_pandas_dtype())[::-1])
    ...
    ...     def to_bytes(self):
    ...         return b""
    ...
    ...     @classmethod
    ...     def from_bytes(cls, data):
    ...         return cls()
    >>> field = pa.field("id", pa.int64(), metadata={"lancetable:encoding": Reversed.type_url})
    >>> unregister_encoding(Reversed)
    """
    registry, key = _registry_of(encoding, family, check=True)
    if key in registry and not replace:
        raise AlreadyExistsError(
            f"an encoding for {key!r} is already registered: {registry[key].__name__}; pass replace=True"
        )
    registry[key] = encoding
    custom_encodings.clear_caches()
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
    registry, key = _registry_of(encoding, family, check=False)
    if registry.get(key) is not encoding:
        raise InvalidInputError(f"{encoding.__name__} is not registered for {key!r}")
    del registry[key]
    custom_encodings.clear_caches()


def _registry_of(encoding: type[Any], family: str, *, check: bool) -> tuple[dict[str, Any], str]:
    """Return the registry of an encoding and its key in it. If `check` is True, validate a page encoding first."""
    if hasattr(encoding, "type_url"):
        if check:
            custom_encodings.check_page_encoding(encoding)
        return custom_encodings.PAGE_ENCODINGS, custom_encodings.message_name(encoding.type_url)
    if family not in _FAMILIES:
        raise InvalidInputError(f"family must be one of {sorted(_FAMILIES)}, got {family!r}")
    case = getattr(encoding, "oneof_case", None)
    for oneof, registry in _FAMILIES[family]:
        if any(field.name == case for field in oneof.fields):
            return registry, str(case)
    raise InvalidInputError(
        f"expected a class with a type_url or with a oneof_case of family {family}, got {encoding.__name__} with"
        f" oneof_case {case!r}"
    )
