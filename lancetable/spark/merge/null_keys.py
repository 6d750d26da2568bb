"""Source rows with a null in the key. They match no row, so each repeated merge would insert them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

NullKeys: TypeAlias = Literal["refuse", "drop", "keep"]


def null_keys_problem(rows: str, keys: Sequence[str]) -> str:
    """Return the error message for source rows with a null key. `rows` is their number."""
    return (
        f"{rows} source rows have a null in the key ({', '.join(keys)}). A null key matches no row, so that each"
        ' repeated merge would insert them again: filter them out, or pass null_keys="drop" to drop and count them or'
        ' null_keys="keep" to insert them each time'
    )
