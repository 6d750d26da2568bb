"""Blobs of random tables: every selection of rows and every kind of read equals that of pylance 14.

A seed determines a table: nulls, empty blobs, sizes around the thresholds, several fragments, deleted rows, a blob
column at the top and one inside of a struct. LANCETABLE_TEST_SCALE multiplies the number of seeds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lancetable as lt

V1 = {"lance-encoding:blob": "true"}
FORMS = ["2.0 first", "2.1 first", "2.2 first", "2.2 second"]
SIZES = [1, 7, 63, 64, 65, 300, 5000]


def blobs(rng: np.random.Generator, n: int) -> list[bytes | None]:
    kind = rng.choice(3, n, p=rng.dirichlet([1, 1, 3]))
    return [(None, b"", rng.bytes(int(rng.choice(SIZES))))[each] for each in kind.tolist()]


def rows(rng: np.random.Generator, form: str, first: int, n: int) -> pa.Table:
    """Return rows with the columns id, b, s {k, b}."""
    if form == "2.2 second":
        limits = {"inline_size_threshold": 64, "dedicated_size_threshold": 1000, "pack_file_size_threshold": 2000}
        field = lance.blob_field("b", **limits)
        top, inner = (lance.blob_array(blobs(rng, n)) for _ in range(2))
    else:
        field = pa.field("b", pa.large_binary(), metadata=V1)
        top, inner = (pa.array(blobs(rng, n), pa.large_binary()) for _ in range(2))
    # 2.0 has no null structs.
    mask = pa.array(rng.random(n) < (0 if form.startswith("2.0") else 0.2))
    struct = pa.StructArray.from_arrays(
        [pa.array(range(n)), inner], fields=[pa.field("k", pa.int64()), field], mask=mask
    )
    fields = [pa.field("id", pa.int64()), field, pa.field("s", struct.type)]
    return pa.table([pa.array(range(first, first + n)), top, struct], schema=pa.schema(fields))


def make(path: str, form: str, rng: np.random.Generator) -> None:
    first, stable = 0, bool(rng.random() < 0.3)
    for number in range(int(rng.integers(1, 4))):
        writer: Any = (lance, lt)[rng.integers(2)]
        n = int(rng.integers(1, 60))
        settings = {} if number else {"data_storage_version": form[:3], "enable_stable_row_ids": stable}
        per_file = int(rng.integers(1, 60))
        made = rows(rng, form, first, n)
        writer.write_dataset(made, path, mode="append" if number else "create", max_rows_per_file=per_file, **settings)
        first += n
    if rng.random() < 0.7:
        gone = rng.choice(first, int(rng.integers(0, first)), replace=False).tolist()
        if gone:
            (lance, lt)[rng.integers(2)].dataset(path).delete(f"id in ({', '.join(map(str, gone))})")


def same(what: str, call: Any, theirs: Any, ours: Any) -> None:
    expected = call(theirs)
    found = call(ours)
    if isinstance(expected, pa.Table):
        assert found.schema.equals(expected.schema, check_metadata=True), what
        assert found.equals(expected), what
    else:
        assert found == expected, what


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("form", FORMS)
def test_blobs_are_read_as_by_pylance(form: str, seed: int, tmp_path: Path, scale: int) -> None:
    for turn in range(scale):
        rng = np.random.default_rng([FORMS.index(form), seed, turn])
        path = str(tmp_path / str(turn))
        make(path, form, rng)
        check(path, rng)


def check(path: str, rng: np.random.Generator) -> None:
    theirs, ours = lance.dataset(path), lt.dataset(path)
    for handling in ("all_binary", "blobs_descriptions", "all_descriptions", None):
        for options in random_scans(rng):
            options["blob_handling"] = handling
            same(f"{options}", lambda ds, options=options: ds.to_table(**options), theirs, ours)
    found = theirs.to_table(columns=["id"], with_row_id=True, with_row_address=True)
    known = {"ids": found["_rowid"].to_pylist(), "addresses": found["_rowaddr"].to_pylist()}
    known["indices"] = list(range(len(found)))
    if not len(found):
        return
    same("take", lambda ds: ds.take([0, len(found) - 1]), theirs, ours)
    for column in ("b", "s.b"):
        for selector, values in known.items():
            chosen = [values[each] for each in rng.integers(0, len(values), int(rng.integers(0, 20))).tolist()]
            what = f"{column} {selector} {chosen}"
            given: dict[str, Any] = {selector: chosen}
            same(what, lambda ds, column=column, given=given: ds.read_blobs(column, **given), theirs, ours)
            same(what, lambda ds, column=column, given=given: opened(ds.take_blobs(column, **given)), theirs, ours)
            wanted = ranges(rng, ours.read_blobs(column, **given), chosen)

            def parts(ds: Any, column: str = column, wanted: Any = wanted, selector: str = selector) -> Any:
                return ds.read_blob_ranges(column, wanted, selector=selector)

            same(f"{what} {wanted}", parts, theirs, ours)


def random_scans(rng: np.random.Generator) -> list[dict[str, Any]]:
    low = int(rng.integers(0, 60))
    return [
        {},
        {"columns": [["b"], ["s.b"], ["s", "id"], ["b", "s.b", "id"]][rng.integers(4)]},
        {"filter": f"id >= {low} and id % 3 = 1", "limit": int(rng.integers(1, 30)), "with_row_id": True},
        {"limit": int(rng.integers(1, 30)), "offset": low, "columns": ["b"]},
    ]


def opened(files: list[Any]) -> list[Any]:
    return [
        None if file is None else (file.size(), file.read(3), file.seek(0, 2), file.seek(1), file.read())
        for file in files
    ]


def ranges(
    rng: np.random.Generator, found: list[tuple[int, bytes | None]], chosen: list[int]
) -> list[tuple[int, int, int]]:
    """Return a part of each chosen blob."""
    made = []
    for (_, data), row in zip(found, chosen):
        start, end = sorted(rng.integers(0, len(data or b"") + 1, 2).tolist())
        made.append((row, start, end - start))
    return made
