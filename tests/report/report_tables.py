"""Tables for the tests of reports."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa

import lancetable as lance

# Each would run a script, close an element, change the direction of text, or break a quoted attribute.
HOSTILE = [
    "<script>document.title = 'hacked'</script>",
    "</script><script>document.title = 'hacked'</script>",
    "<!--<script>",
    '" onmouseover="document.title = \'hacked\'" x="',
    "' onfocus='document.title = 1' autofocus tabindex='1",
    "<img src=x onerror=document.title='hacked'>",
    "</title></style></textarea><svg onload=document.title='hacked'>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:document.title='hacked'",
    "\u202ereversed\u2066 \u200b\ufeff hidden\u2069",
    "line\nbreak\ttab\x00null\x1b[31mred",
    "\u2028separator",
    "long" * 2000,
    "-rf",
    "$(touch hacked) `touch hacked` 'quoted'",
]


def flights(num_rows: int, first: int = 0) -> pa.Table:
    """Return rows of several types, in the order of the key."""
    rng = np.random.default_rng(first)
    keys = np.arange(first, first + num_rows)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(num_rows * 8, np.float32)), 8)
    return pa.table(
        {
            "id": keys,
            "carrier": np.array(["AA", "B6", "DL", "UA"])[keys % 4],
            "delay": pa.array(rng.normal(10, 30, num_rows), mask=keys % 7 == 0),
            "place": pa.array([{"lat": key / 7, "tags": ["a"] * (key % 3)} for key in keys.tolist()]),
            "embedding": vectors,
        }
    )


def maintained_table(path: Path) -> lance.LanceDataset:
    """Return a table with several versions, deleted rows, a tag, a branch, an index, and columns in two sets."""
    ds = lance.write_dataset(flights(20_000), path, max_rows_per_file=5_000, commit_message="first load")
    ds.insert(flights(300, 20_000))
    ds.tags.create("loaded")
    ds.create_branch("trial")
    ds.delete("id < 1000")
    ds.create_scalar_index("id", "BTREE")
    ds.insert(flights(2_000, 30_000))
    ds.add_columns({"late": "delay > 15"})
    return ds


def many_fragments(path: Path, num_fragments: int = 10_000) -> lance.LanceDataset:
    """Return a table whose fragments have different sizes and refer to a few data files."""
    ds = lance.write_dataset(pa.table({"id": range(100)}), path)
    for num_rows in (40, 700, 250, 1):
        ds.insert(pa.table({"id": range(num_rows)}))
    written = [fragment.metadata for fragment in ds.get_fragments()]
    copies = [written[number * number // 1000 % 5] for number in range(num_fragments)]
    fragments = [
        lance.FragmentMetadata(number, copy.files, copy.physical_rows, None) for number, copy in enumerate(copies)
    ]
    return lance.LanceDataset.commit(path, lance.LanceOperation.Overwrite(ds.schema, fragments), read_version=5)


def hostile_table(directory: Path) -> lance.LanceDataset:
    """Return a table with hostile names of columns, tags, indexes, files and keys, and hostile values everywhere."""
    path = directory / "<script>document.title=1<script> 'a' \"b\" \u202e.lance"
    names = [name.replace(".", "·") for name in HOSTILE]
    table = pa.table(dict.fromkeys(names, HOSTILE))
    table = table.replace_schema_metadata({name: name for name in HOSTILE})
    ds = lance.write_dataset(table, path, commit_message=HOSTILE[1])
    ds.update_config({name: name for name in HOSTILE})
    ds.update_metadata({name: name for name in HOSTILE})
    for number, name in enumerate(HOSTILE):
        ds.create_scalar_index(names[number], "BITMAP", name=name)
    ds.insert(table)
    tag = {"branch": None, "version": ds.version, "manifestSize": 1}
    tags = Path(ds.uri) / "_refs" / "tags"
    tags.mkdir(parents=True, exist_ok=True)
    for name in HOSTILE:
        if "/" not in name and "\x00" not in name and len(name) < 200:
            (tags / f"{name}.json").write_text(json.dumps(tag))
    return lance.dataset(path)
