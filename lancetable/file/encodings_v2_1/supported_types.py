"""Checks that files of version 2.1 and 2.2 can store a field.

    2.1 only        no maps, no fixed-size lists of structs, packed structs of plain fixed widths only
    2.1 and 2.2     no lists of version 1 blobs, no lists of empty structs, no types without a width or offsets

Source: protos/encodings_v2_1.proto and the files that pylance writes.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lancetable.errors import UnsupportedFeatureError
from lancetable.file.encodings_v2_1.block import is_variable, type_bits
from lancetable.file.encodings_v2_1.shred import Leaf, StepKind
from lancetable.format.schema import Field
from lancetable.format.version import FileVersion


def check_field(field: Field, leaves: Sequence[Leaf], version: FileVersion) -> None:
    """Raise UnsupportedFeatureError, with the path of the column, if files of this version cannot store a field.

    `leaves` are the leaves of the field.
    """
    if version is FileVersion.V2_1 and any(node.logical_type == "map" for node in field.walk()):
        raise _unsupported(leaves[0], version, "a map")
    for leaf in leaves:
        _check_leaf(leaf, version)


def _check_leaf(leaf: Leaf, version: FileVersion) -> None:
    kinds = {step.kind for step in leaf.steps}
    if StepKind.FIXED in kinds and version is FileVersion.V2_1:
        raise _unsupported(leaf, version, "a fixed-size list of structs")
    if StepKind.FIXED in kinds and StepKind.LIST in kinds:
        raise _unsupported(leaf, version, "a fixed-size list of structs together with a list")
    if StepKind.LIST in kinds and leaf.field.is_blob:
        raise _unsupported(leaf, version, "a list of blobs")
    if StepKind.LIST in kinds and leaf.field.is_struct and not leaf.field.children:
        raise _unsupported(leaf, version, "a list of empty structs")
    if leaf.field.is_packed:
        _check_packed(leaf, version)
        return
    data_type = leaf.field.data_type
    if pa.types.is_fixed_size_list(data_type):
        storable = bool(type_bits(data_type))
    elif pa.types.is_struct(data_type):
        storable = data_type.num_fields == 0
    else:
        values = data_type.value_type if pa.types.is_dictionary(data_type) else data_type
        storable = pa.types.is_null(data_type) or is_variable(values) or bool(type_bits(values))
        storable |= data_type == pa.binary(0) and version is not FileVersion.V2_1
    if not storable:
        raise _unsupported(leaf, version, str(data_type))


def _check_packed(leaf: Leaf, version: FileVersion) -> None:
    for child in leaf.field.data_type:
        plain = not pa.types.is_fixed_size_list(child.type) and not is_variable(child.type)
        bits = type_bits(child.type)
        fits = is_variable(child.type) or (bool(bits) and bits is not None and bits % 8 == 0)
        if not fits or (version is FileVersion.V2_1 and not plain):
            raise _unsupported(leaf, version, f"a packed struct with {child.name!r} of type {child.type}")


def _unsupported(leaf: Leaf, version: FileVersion, feature: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"column {leaf.path!r}: files of version {version.number} cannot store {feature}",
        feature=feature,
        column=leaf.path,
    )
