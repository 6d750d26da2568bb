"""Fixture with pylance's `lance.arrow` whose types are unregistered while the tests of a module run.

If the types were registered, lancetable would return arrays of pylance's classes, and a comparison would prove nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest


@pytest.fixture(scope="module")
def theirs() -> Iterator[Any]:
    arrow = pytest.importorskip("lance.arrow")
    types = [arrow.BFloat16Type(), arrow.ImageURIType(), arrow.EncodedImageType()]
    types.append(arrow.FixedShapeImageTensorType(pa.uint8(), (1,)))
    for each in types:
        pa.unregister_extension_type(each.extension_name)
    yield arrow
    for each in types:
        pa.register_extension_type(each)
