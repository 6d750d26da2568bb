"""Functions of vectors return the values and types of pylance."""

from __future__ import annotations

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import InvalidSqlError

ROWS = [[1.5, -0.0], None, [3.0, 70000.0], [1e-8, float("nan")]]
TABLE = pa.table(
    {
        "fixed": pa.array(ROWS, pa.list_(pa.float32(), 2)),
        "list": pa.array(ROWS, pa.list_(pa.float32())),
        "half": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(8, dtype=np.float16)), 2),
        "double": pa.array(ROWS, pa.list_(pa.float64(), 2)),
        "large": pa.array(ROWS, pa.large_list(pa.float32())),
        "number": pa.array([1, 2, 3, 4], pa.float32()),
    }
)


@pytest.mark.parametrize("column", ["fixed", "list", "half"])
def test_vectors_are_cast_to_float16(tmp_path: Path, column: str) -> None:
    lance.write_dataset(TABLE, str(tmp_path))
    ours, theirs = (
        library.dataset(str(tmp_path)).to_table(columns={"r": f"_cast_list_f16({column})"})
        for library in (lancetable, lance)
    )
    assert ours.schema == theirs.schema
    assert str(ours["r"].to_pylist()) == str(theirs["r"].to_pylist())


@pytest.mark.parametrize("arguments", ["double", "large", "number", "null", "", "fixed, fixed"])
def test_other_arguments_are_refused(tmp_path: Path, arguments: str) -> None:
    lance.write_dataset(TABLE, str(tmp_path))
    for library, error in ((lancetable, InvalidSqlError), (lance, ValueError)):
        with pytest.raises(error, match="cast_list_f16"):
            library.dataset(str(tmp_path)).to_table(columns={"r": f"_cast_list_f16({arguments})"})
