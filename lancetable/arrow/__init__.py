"""Arrow extension types for machine learning: bfloat16 numbers, and images as URIs, encoded bytes or tensors.

    import lancetable.arrow

After this import, columns of these types are read as the arrays of this package; before it, as their storage. If
another library has registered a type with the same name, such as pylance's `lance.arrow`, that type is used. This
package registers nothing with pyarrow, so both libraries can be imported in any order. To get these types from files of
other formats, pass them to `pyarrow.register_extension_type`.
"""

from __future__ import annotations

from typing import Any

from lancetable.arrow.bfloat16 import *  # noqa: F403
from lancetable.arrow.images import *  # noqa: F403
from lancetable.arrow.optional_imports import load

try:
    from lancetable.arrow.pandas_bfloat16 import PandasBFloat16Array as PandasBFloat16Array
except ImportError:

    def __getattr__(name: str) -> Any:
        if name == "PandasBFloat16Array":
            load("lancetable.arrow.pandas_bfloat16", "pandas series")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
