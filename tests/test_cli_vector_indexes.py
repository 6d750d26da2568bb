"""Commands for vector indexes: partitions, unindexed rows and an estimate of the recall."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import IndexNotFoundError, InvalidInputError

click_testing = pytest.importorskip("click.testing")
pytest.importorskip("rich")

from lancetable.cli.commands import cli  # noqa: E402  # after the check that click is installed
from tests.index.vector.built_tables import clustered, table_of  # noqa: E402  # likewise


def invoke(*arguments: str, code: int = 0) -> Any:
    result = click_testing.CliRunner().invoke(cli, ["index", *arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def run_json(*arguments: str) -> Any:
    return json.loads(invoke(*arguments, "--json").stdout)


def error_of(*arguments: str) -> Any:
    return invoke(*arguments, code=1).exception


@pytest.fixture
def uri(tmp_path: Path) -> str:
    path = str(tmp_path / "t.lance")
    lancetable.write_dataset(table_of(clustered(900, 1)), path, max_rows_per_file=300)
    return path


def test_an_index_is_created_listed_and_described(uri: str) -> None:
    created = run_json("create", uri, "v", "ivf_pq", "-p", "num_partitions=4", "-p", "num_sub_vectors=8")
    assert (created["name"], created["type"], created["columns"], created["version"]) == ("v_idx", "IVF_PQ", ["v"], 2)
    assert (created["indexed_rows"], created["unindexed_rows"]) == (900, 0) and created["bytes"] > 900 * 8
    lancetable.dataset(uri).insert(table_of(clustered(50, 2), 900))
    (row,) = run_json("list", uri)
    assert (row["indexed_rows"], row["unindexed_rows"]) == (900, 50)
    described = run_json("describe", uri, "v_idx")
    assert described["settings"]["compression"] == {"type": "pq", "num_bits": 8, "num_sub_vectors": 8}
    lines = invoke("describe", uri, "v_idx").output.splitlines()
    assert {"type             IVF_PQ", "quantizer        pq", "num sub vectors  8"} <= {*lines}
    assert "sample_rate" not in " ".join(lines), "hints do not affect the index"
    assert [row["read_fragments"] for row in run_json("optimize", uri)] == [[3]]
    assert run_json("optimize", uri, "--run")["changed_indexes"] == ["v_idx"]
    (row,) = run_json("list", uri)
    assert (row["segments"], row["indexed_rows"], row["unindexed_rows"]) == (2, 950, 0)


def test_a_check_shows_partitions_and_recall(uri: str) -> None:
    lance.dataset(uri).create_index("v", "IVF_FLAT", num_partitions=4)
    lancetable.dataset(uri).insert(table_of(clustered(50, 2), 900))
    facts = run_json("check", uri, "v_idx", "--nprobes", "4")
    assert (facts["type"], facts["metric"], facts["unindexed_rows"]) == ("IVF_FLAT", "l2", 50)
    assert (facts["recall"], facts["queries"], facts["k"], facts["nprobes"]) == (1.0, 100, 10, 4)
    (segment,) = facts["segments"]
    sizes = sorted(segment["sizes"])
    assert sum(sizes) == segment["rows"] == 900 and len(sizes) == segment["partitions"] == 4
    assert (segment["smallest"], segment["median"], segment["largest"]) == (sizes[0], sizes[2], sizes[3])
    lancetable.dataset(uri).optimize.optimize_indices()
    text = invoke("check", uri, "v_idx", "--partitions", "-k", "3", "--refine", "5").output
    assert "unindexed rows  0\n" in text
    assert "recall          1.0000 of 3 rows, 100 queries, 20 probes, refine factor 5\n" in text
    table = text[text.index("partition   rows of segment 1   rows of segment 2") :].splitlines()[2:6]
    assert [line.split()[0] for line in table] == ["0", "1", "2", "3"]
    assert sum(int(number) for line in table for number in line.split()[1:]) == 950


def test_few_probes_and_short_codes_have_a_lower_recall(uri: str) -> None:
    run_json("create", uri, "v", "ivf_pq", "-p", "num_partitions=30", "-p", "num_sub_vectors=2", "-p", "seed=1")
    all_rows = ["check", uri, "v_idx", "--queries", "900"]
    few_probes, short_codes, complete = (
        run_json(*all_rows, "--nprobes", probes, *more)["recall"]
        for probes, more in (("1", ["--refine", "50"]), ("30", []), ("30", ["--refine", "90"]))
    )
    assert 0 < few_probes < 1 and 0 < short_codes < 1 and complete == 1


def test_the_recall_is_the_share_of_rows_that_searches_find(uri: str) -> None:
    """Compare with a computation from all distances."""
    run_json("create", uri, "v", "ivf_sq", "-p", "num_partitions=20", "-p", "seed=1")
    dataset = lancetable.dataset(uri)
    vectors = np.stack(dataset.to_table()["v"].to_numpy(zero_copy_only=False))
    hits = 0
    for row, vector in enumerate(vectors):
        distances = ((vectors - vector) ** 2).sum(axis=1)
        distances[row] = np.inf
        nearest = {"column": "v", "q": vector, "k": 6, "nprobes": 2}
        found = dataset.to_table(nearest=nearest, columns=["id"])["id"].to_numpy()
        hits += len({*found[found != row][:5].tolist()} & {*np.argsort(distances)[:5].tolist()})
    facts = run_json("check", uri, "v_idx", "--queries", "900", "-k", "5", "--nprobes", "2")
    assert 0.5 < facts["recall"] < 1 and facts["recall"] == pytest.approx(hits / (5 * len(vectors)), abs=2e-3)


def test_equal_vectors_replace_each_other(tmp_path: Path) -> None:
    vectors = np.repeat(clustered(5, 1), 100, axis=0)
    uri = str(tmp_path / "t")
    lancetable.write_dataset(table_of(vectors), uri).create_index("v", "IVF_FLAT", num_partitions=5)
    assert run_json("check", uri, "v_idx", "--nprobes", "1")["recall"] == 1


def test_the_checked_index_is_the_named_one(uri: str) -> None:
    for name, metric in (("first", "l2"), ("second", "dot")):
        run_json("create", uri, "v", "ivf_flat", "--name", name, "-p", f"metric={metric}", "-p", "num_partitions=30")
    facts = [run_json("check", uri, name, "--nprobes", "30") for name in ("first", "second")]
    assert [(each["metric"], each["recall"]) for each in facts] == [("l2", 1.0), ("dot", 1.0)]


@pytest.mark.parametrize("kind", ["nulls", "bits", "multivectors", "tensors"])
def test_vectors_of_all_types_are_sampled(tmp_path: Path, kind: str) -> None:
    vectors, metric = clustered(600, 1, "uint8" if kind == "bits" else "float32"), "l2"
    array = table_of(vectors)["v"].combine_chunks()
    if kind == "nulls":
        array = pa.array([None if row % 2 else value for row, value in enumerate(array.to_pylist())], array.type)
    elif kind == "bits":
        metric = "hamming"
    elif kind == "multivectors":
        array, metric = pa.ListArray.from_arrays(pa.array(range(0, 601, 3), pa.int32()), array), "cosine"
    elif kind == "tensors":
        array = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [vectors.shape[1]]), array)
    uri = str(tmp_path / "t")
    dataset = lancetable.write_dataset(pa.table({"v": array}), uri)
    dataset.create_index("v", "IVF_FLAT", metric=metric, num_partitions=2)
    facts = run_json("check", uri, "v_idx", "--queries", "40")
    assert facts["recall"] == 1 and 0 < facts["queries"] <= 40


def test_an_index_without_rows_has_no_recall(uri: str, tmp_path: Path) -> None:
    run_json("create", uri, "v", "ivf_sq", "--empty")
    lancetable.write_dataset(table_of(clustered(0, 1)), tmp_path / "empty").create_index("v", "IVF_FLAT")
    for path, rows in ((uri, 900), (str(tmp_path / "empty"), 0)):
        facts = run_json("check", path, "v_idx")
        assert (facts["indexed_rows"], facts["unindexed_rows"]) == (0, rows)
        assert facts["recall"] is None and facts["segments"] == []
        assert "recall" not in invoke("check", path, "v_idx", "--partitions").output
    assert run_json("check", uri, "v_idx", "--queries", "0")["queries"] == 0


def test_requests_that_cannot_succeed_are_refused(uri: str) -> None:
    run_json("create", uri, "id", "btree")
    error = error_of("check", uri, "v_idx")
    assert isinstance(error, IndexNotFoundError) and "the table has id_idx" in str(error)
    error = error_of("check", uri, "id_idx")
    assert isinstance(error, InvalidInputError) and "is a BTree index; check is for vector indexes" in str(error)
    for arguments, message in {
        ("id", "ivf_flat"): "store lists of a fixed size",
        ("v", "ivf_rq"): "Got ivf_rq",
        ("v", "ivf_pq"): "num_sub_vectors",
        ("v", "ivf_pq", "-p", "num_sub_vectors=5"): "must be divisible by num_sub_vectors",
        ("v", "ivf_flat", "-p", "metrik=l2"): "no option 'metrik'",
        ("nope", "ivf_flat"): "nope",
    }.items():
        assert message in str(error_of("create", uri, *arguments)), arguments
    assert (
        "num_partitions must be int" in invoke("create", uri, "v", "ivf_flat", "-p", "num_partitions=x", code=2).output
    )
    assert "no option 'train'" in str(error_of("create", uri, "v", "ivf_flat", "-p", "train=true"))
    assert [index.name for index in lancetable.dataset(uri).describe_indices()] == ["id_idx"]


def test_types_that_are_not_supported_are_named(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(table_of(clustered(600, 1, dim=32)), uri).create_index("v", "IVF_RQ", num_partitions=2)
    (row,) = run_json("list", uri)
    assert (row["type"], row["indexed_rows"]) == ("IVF_RQ", 600)
    assert run_json("describe", uri, "v_idx")["settings"]["compression"]["type"] == "rq"
    for arguments in (("check", uri, "v_idx"), ("optimize", uri, "--name", "v_idx")):
        error = error_of(*arguments)
        assert isinstance(error, lancetable.errors.UnsupportedFeatureError) and "IVF_RQ" in str(error)


def test_damage_is_reported(uri: str) -> None:
    run_json("create", uri, "v", "ivf_flat", "-p", "num_partitions=2")
    (file,) = Path(uri).rglob("auxiliary.idx")
    os.truncate(file, 100)
    assert isinstance(error_of("check", uri, "v_idx"), lancetable.errors.LanceError)
