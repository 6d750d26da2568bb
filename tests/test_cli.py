"""Command line: readable output and JSON output."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancetable as lance

click_testing = pytest.importorskip("click.testing")
pytest.importorskip("rich")

from lancetable.cli.commands import cli  # noqa: E402  # after the check that click is installed
from lancetable.cli.main import main  # noqa: E402  # likewise
from lancetable.cli.output import Output  # noqa: E402  # likewise


@pytest.fixture
def ds(tmp_path: Path) -> lance.LanceDataset:
    point = pa.array([{"x": 1.5, "tags": ["a"]}, {"x": float("nan"), "tags": []}, {"x": None, "tags": None}])
    table = pa.table(
        {"id": pa.array([1, 2, 3]), "name[b]": ["[red]", "β", None], "b": [b"\x00", b"", None], "p": point}
    )
    dataset = lance.write_dataset(table, tmp_path / "t.lance", max_rows_per_file=2, commit_message="first")
    dataset.delete("id = 2")
    dataset.tags.create("clean")
    return dataset


def invoke(*arguments: str, code: int = 0) -> Any:
    result = click_testing.CliRunner().invoke(cli, arguments)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def run(*arguments: str, code: int = 0) -> str:
    return str(invoke(*arguments, code=code).output)


def run_json(*arguments: str) -> Any:
    return json.loads(invoke(*arguments, "--json").stdout)


def test_info(ds: lance.LanceDataset) -> None:
    facts = run_json("info", ds.uri)
    assert facts["version"] == facts["latest_version"] == 2
    assert (facts["rows"], facts["deleted_rows"], facts["fragments"], facts["data_files"]) == (2, 1, 2, 2)
    assert (facts["data_format"], facts["tags"]) == ("2.2", {"clean": 2})
    assert facts["columns"] == ["id", "name[b]", "b", "p"]
    assert run_json("info", ds.uri, "-v", "1")["rows"] == 3
    assert run_json("info", ds.uri, "-v", "clean", "-o", "fsync=false")["version"] == 2
    text = run("info", ds.uri)
    assert "data format" in text and "name[b]" in text


def test_python_runs_the_package_as_the_command_line(ds: lance.LanceDataset) -> None:
    command = [sys.executable, "-m", "lancetable", "count", ds.uri, "--json"]
    assert json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["rows"] == 2


def test_names_and_values_do_not_control_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = "\x1b]0;title\x07\u202e"
    uri = str(tmp_path / "t.lance")
    ds = lance.write_dataset(pa.table({hostile: [hostile, "a\nb"]}), uri, commit_message=hostile)
    ds.update_config({hostile: hostile})
    for command in ("info", "head", "versions", "schema", "report", "inspect manifest", "inspect transaction"):
        output = run(*command.split(), uri)
        assert "\x1b" not in output and "\u202e" not in output
    assert "\\u001b]0;title\\u0007\\u202e" in run("head", uri)
    assert [row[hostile] for row in run_json("head", uri)] == [hostile, "a\nb"]
    monkeypatch.setattr(sys, "argv", ["lancetable", "head", uri, "-c", "missing"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert "\\u001b" in str(stopped.value) and "\x1b" not in str(stopped.value)


def test_rows_whose_values_have_no_python_object_are_printed(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    far = pa.array([2**62, None, 7], pa.duration("s"))
    nested = pa.StructArray.from_arrays([far, pa.ListArray.from_arrays([0, 1, 1, 3], far)], ["d", "l"])
    lance.write_dataset(pa.table({"id": range(3), "far": far, "nested": nested}), uri)
    first, second, third = run_json("head", uri)
    text = "4611686018427387904 s"
    assert first == {"id": 0, "far": text, "nested": {"d": text, "l": [text]}}
    assert second == {"id": 1, "far": None, "nested": {"d": None, "l": []}}
    assert third == {"id": 2, "far": 7.0, "nested": {"d": 7.0, "l": [None, 7.0]}}
    assert text in run("head", uri)


def test_index_commands(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset({"id": range(50), "s": ["a", "b"] * 25}, uri, max_rows_per_file=20)
    assert run_json("index", "list", uri) == []
    created = run_json("index", "create", uri, "id", "zonemap", "--name", "zones", "--param", "rows_per_zone=8")
    assert (created["name"], created["type"], created["columns"], created["version"]) == ("zones", "ZoneMap", ["id"], 2)
    assert (created["indexed_rows"], created["unindexed_rows"], created["segments"]) == (50, 0, 1)
    assert "already exists" in str(
        invoke("index", "create", uri, "id", "btree", "--name", "zones", "--keep", code=1).exception
    )
    assert run_json("index", "create", uri, "s", "bitmap", "--empty")["indexed_rows"] == 0
    rows = run_json("index", "list", uri)
    assert [(row["name"], row["unindexed_rows"]) for row in rows] == [("s_idx", 50), ("zones", 0)]
    assert run_json("index", "list", uri, "-v", "1") == []
    described = run_json("index", "describe", uri, "zones")
    assert [part["fragments"] for part in described["segments"]] == [[0, 1, 2]]
    assert "zones" in run("index", "describe", uri, "zones") and "ZoneMap" in run("index", "list", uri)
    plan = run_json("index", "optimize", uri)
    assert [(row["name"], row["read_fragments"], len(row["merged_segments"])) for row in plan] == [
        ("s_idx", [0, 1, 2], 1)
    ]
    assert lance.dataset(uri).version == 3
    assert run_json("index", "optimize", uri, "--run") == {"uri": uri, "version": 4, "changed_indexes": ["s_idx"]}
    assert run_json("index", "optimize", uri, "--name", "zones", "--retrain", "--run")["changed_indexes"] == ["zones"]
    dropped = run_json("index", "drop", uri, "zones")
    assert (dropped["version"], len(dropped["segments"])) == (5, 1)
    assert run_json("index", "drop", uri, "zones", "--run")["version"] == 6
    assert [row["name"] for row in run_json("index", "list", uri)] == ["s_idx"]
    for arguments in (("drop", uri, "zones"), ("describe", uri, "zones"), ("optimize", uri, "--name", "zones")):
        assert "the table has s_idx" in str(invoke("index", *arguments, code=1).exception)
    assert isinstance(invoke("index", "create", uri, "nope", "btree", code=1).exception, lance.LanceError)
    assert "expected key=value" in run("index", "create", uri, "id", "btree", "--param", "x", code=2)


def test_versions(ds: lance.LanceDataset) -> None:
    rows = run_json("versions", ds.uri)
    assert [(row["version"], row["operation"], row["rows"], row["tags"]) for row in rows] == [
        (1, "Overwrite", 3, []),
        (2, "Delete", 2, ["clean"]),
    ]
    assert "Overwrite" in run("versions", ds.uri)


def test_schema(ds: lance.LanceDataset) -> None:
    rows = run_json("schema", ds.uri)
    assert [(row["id"], row["path"], row["type"]) for row in rows] == [
        (0, "id", "int64"),
        (1, "name[b]", "string"),
        (2, "b", "binary"),
        (3, "p", "struct"),
        (4, "p.x", "double"),
        (5, "p.tags", "list"),
        (6, "p.tags.item", "string"),
    ]
    assert "p.tags.item" in run("schema", ds.uri)


def test_head(ds: lance.LanceDataset) -> None:
    rows = run_json("head", ds.uri, "-v", "1")
    assert rows[0] == {"id": 1, "name[b]": "[red]", "b": "AA==", "p": {"x": 1.5, "tags": ["a"]}}
    assert rows[1]["p"]["x"] == "nan"
    assert run_json("head", ds.uri, "-n", "1", "-c", "id", "-f", "id > 1") == [{"id": 3}]
    assert run_json("head", ds.uri, "-n", "0") == []
    assert "[red]" in run("head", ds.uri)


def test_inspect_manifest_and_transaction(ds: lance.LanceDataset) -> None:
    manifest = run_json("inspect", "manifest", ds.uri)
    assert manifest["version"] == 2 and len(manifest["fragments"]) == 2
    assert manifest["fragments"][0]["deletion_file"]["kind"] == "ARROW_ARRAY"
    assert manifest["schema"][4]["path"] == "p.x"
    transaction = run_json("inspect", "transaction", ds.uri, "-v", "1")
    assert transaction["properties"] == {"__lance_commit_message": "first"}
    assert transaction["operation"]["kind"] == "Overwrite"
    assert "Delete" in run("inspect", "transaction", ds.uri)
    assert "writer_flags" in run("inspect", "manifest", ds.uri)


def test_inspect_file_shows_pages_and_encodings(ds: lance.LanceDataset) -> None:
    path = f"{ds.uri}/data/{ds.get_fragment(0).data_files()[0].path}"
    described = run_json("inspect", "file", path)
    assert (described["version"], described["num_rows"], described["num_columns"]) == ("2.2", 2, 5)
    (page,) = described["columns"][0]["pages"]
    assert (page["rows"], page["first_row"]) == (2, 0)
    assert [buffer["size_bytes"] for buffer in page["buffers"]] == [4, 24]  # the word of the chunk, the chunk
    assert "flat" in json.dumps(page["encoding"]) and "mini_block_layout" in json.dumps(page["encoding"])
    assert "encoding" in run("inspect", "file", path)
    assert [column["path"] for column in described["columns"]][:1] == [described["schema"][0]["path"]]


def test_error_for_inspecting_a_table_has_one_of_its_files(ds: lance.LanceDataset) -> None:
    for command in (["inspect"], ["inspect", "compression"]):
        result = click_testing.CliRunner().invoke(cli, [*command, ds.uri])
        assert "is a table" in str(result.exception) and "data/" in str(result.exception)


def test_migrate(tmp_path: Path) -> None:
    uri = str(tmp_path / "old")
    lance.write_dataset(pa.table({"a": [1, 2]}), uri, data_storage_version="0.1", enable_v2_manifest_paths=False)
    (path,) = Path(uri, "data").iterdir()
    assert run_json("inspect", "file", str(path))["batch_rows"] == [2]
    planned = run_json("migrate", uri, "--to", "2.1", "--v2-names")
    assert (planned["from"], planned["fragments_to_change"], planned["manifests_to_rename"]) == ("0.1", 1, 1)
    assert lance.dataset(uri).version == 1 and "--run" in run("migrate", uri)
    assert "2.0 or newer" in str(click_testing.CliRunner().invoke(cli, ["migrate", uri, "--to", "0.1"]).exception)
    done = run_json("migrate", uri, "--to", "2.1", "--v2-names", "--run")
    assert (done["from"], done["to"], done["fragments_changed"], done["manifests_renamed"]) == ("0.1", "2.1", 1, 1)
    assert lance.dataset(uri).to_table().to_pydict() == {"a": [1, 2]}


def test_error_is_one_line_with_exit_code_1(ds: lance.LanceDataset, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lancetable.cli.main"]
    failed = subprocess.run([*command, "info", str(tmp_path / "no")], capture_output=True, text=True)
    assert failed.returncode == 1 and failed.stderr.startswith("lancetable: ") and failed.stderr.count("\n") == 1
    assert subprocess.run([*command, "info", ds.uri], capture_output=True).returncode == 0
    run("info", code=2)
    assert "key=value" in run("info", ds.uri, "-o", "wrong", code=2)


def test_error_without_the_extra_has_the_pip_command(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError(\"No module named 'click'\", name='click')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from lancetable.cli.main import main; main()"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert failed.returncode == 1 and "pip install 'lancetable[cli]'" in failed.stderr


def test_table_in_memory_is_read() -> None:
    lance.write_dataset({"a": [1]}, "memory://cli/t", mode="overwrite")
    assert run_json("head", "memory://cli/t") == [{"a": 1}]


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_inspect_compression_of_a_file(version: str, tmp_path: Path) -> None:
    numbers = pa.array(range(1000), pa.int64())
    point = pa.StructArray.from_arrays([numbers, pa.array([[i] * (i % 3) for i in range(1000)])], ["x", "l"])
    table = pa.table(
        {"n": numbers, "s": ["the same text", "another text"] * 500, "p": point, "none": pa.nulls(1000, pa.int8())}
    )
    path = str(tmp_path / "a.lance")
    with lance.file.LanceFileWriter(path, table.schema, version=version) as writer:
        writer.write_batch(table)
    rows = run_json("inspect", "compression", path)
    by_path = {row["path"]: row for row in rows}
    leaves = {"n", "s", "p.x", "p.l.item", "none"}
    assert set(by_path) == leaves | {"(all)"} | ({"p", "p.l"} if version == "2.0" else set())
    # Every Arrow byte is counted once.
    assert by_path["(all)"]["arrow_bytes"] == table.nbytes == sum(row["arrow_bytes"] for row in rows[:-1])
    pages = run_json("inspect", path)["columns"]
    for row in rows[:-1]:
        buffers = [buffer for page in pages[row["column"]]["pages"] for buffer in page["buffers"]]
        assert row["file_bytes"] == sum(buffer["size_bytes"] for buffer in buffers)
        assert sum(row["encodings"].values()) == row["pages"] == 1
    assert by_path["n"]["ratio"] == round(by_path["n"]["file_bytes"] / 8000, 4)
    (used,) = by_path["n"]["encodings"]
    assert used == ("nullable(flat 64)" if version == "2.0" else "mini_block(inline_bitpacking 64)")
    assert "dictionary" in next(iter(by_path["s"]["encodings"]))
    assert "p.l.item" in run("inspect", "compression", path)


def test_inspect_blob_descriptions(tmp_path: Path) -> None:
    data = pa.table([lance.blob_array([b"a", None, b"x" * 70_000])], schema=pa.schema([lance.blob_field("b")]))
    ds = lance.write_dataset(data, tmp_path / "t", data_storage_version="2.2")
    path = f"{ds.uri}/data/{ds.get_fragments()[0].data_files()[0].path}"
    assert [field["path"] for field in run_json("inspect", path)["schema"]] == ["b"]
    (used,) = run_json("inspect", "compression", path)[0]["encodings"]
    assert used.startswith("full_zip(variable_packed_struct(")


def test_probe(tmp_path: Path) -> None:
    facts = json.loads(run("probe", str(tmp_path / "t"), "--keys", "3", "--threads", "4", "--json"))
    assert (facts["safe_for_many_writers"], facts["keys_with_one_winner"], facts["most_winners"]) == (True, 3, 1)
    assert list(tmp_path.rglob("*.*")) == []
    rows = f"manifest_store=sqlite:///{tmp_path}/rows.db"
    facts = json.loads(run("probe", str(tmp_path / "t"), "--keys", "2", "--threads", "3", "--json", "-o", rows))
    assert facts["safe_for_many_writers"]
    assert "Sqlite" in facts["commits"]
    text = run("probe", "ftp://nobody.invalid/t", code=2)
    assert "no" in text and "commit_lock" in text and "unsafe_single_writer" in text


def test_progress_bar_is_shown_only_on_a_terminal(ds: lance.LanceDataset) -> None:
    pytest.importorskip("tqdm")
    command = [sys.executable, "-m", "lancetable.cli.main", "compact", ds.uri, "--run", "--json"]
    terminal, child_end = pty.openpty()
    fcntl.ioctl(child_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=child_end, check=True, timeout=60)
        shown = os.read(terminal, 1 << 16).decode()
    finally:
        os.close(terminal)
        os.close(child_end)
    assert json.loads(done.stdout)["fragments_removed"] == 2 and "compact: 100%" in shown
    command[3:] = ["cleanup", ds.uri, "--run", "--json"]
    assert subprocess.run(command, capture_output=True, check=True, timeout=60).stderr == b""


# ---- versions, references and changes


def test_times_are_printed_with_their_zone(ds: lance.LanceDataset) -> None:
    times = [run_json("info", ds.uri)["committed"], run_json("tags", ds.uri)[0]["created_at"]]
    times += [row["committed"] for row in run_json("versions", ds.uri)]
    assert [datetime.fromisoformat(time).utcoffset() for time in times] == [timedelta()] * 4
    assert "+00:00" in run("info", ds.uri)


def test_a_narrow_terminal_breaks_paths_but_no_times_and_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    row = {"committed": datetime(2026, 1, 2, 3, 4, 5), "name": "embedding_idx", "path": "p" * 100, "rows": 1234567}
    Output(as_json=False).table([row], row)
    lines = capsys.readouterr().out.splitlines()
    assert any(re.search(r"2026-01-02 03:04:05\.000 +embedding_idx +p{12,} +1,234,567", line) for line in lines)
    assert sum(line.count("p") for line in lines if "pppp" in line) == 100, "the whole path is shown"


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (
            {"name": "embedding_idx", "type": "IVF_PQ", "columns": ["embedding"], "segments": 1}
            | {"indexed_rows": 20_000, "unindexed_rows": 100, "bytes": 283_642},
            r" embedding_idx +IVF_PQ +embedding +1 +20,000 +100 +283,642 *",
        ),
        ({"kind": "data file", "version": 2, "path": "p" * 90, "detail": "d" * 90}, r" data file +2 +p{20,} +d{20,} *"),
    ],
    ids=["index list", "fsck"],
)
def test_wide_tables_fit_into_80_columns(
    row: dict[str, Any], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    Output(as_json=False).table([row], row)
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 80
    assert any(re.fullmatch(line, shown) for shown in lines)


def test_times_in_the_data_are_printed_as_they_are(tmp_path: Path) -> None:
    naive = datetime(2026, 1, 2, 3, 4, 5)  # a column without a zone
    ds = lance.write_dataset(pa.table({"t": [naive]}), tmp_path / "t")
    assert run_json("head", ds.uri) == [{"t": "2026-01-02T03:04:05"}]


def test_count(ds: lance.LanceDataset) -> None:
    assert run_json("count", ds.uri)["rows"] == 2
    assert run_json("count", ds.uri, "-v", "1", "-f", "id > 1")["rows"] == 2
    assert run_json("count", ds.uri, "-f", "id > 99")["rows"] == 0


def test_tags_are_created_moved_listed_and_deleted(ds: lance.LanceDataset) -> None:
    rows = run_json("tags", ds.uri, "--create", "first", "-v", "1")
    assert [(row["tag"], row["version"]) for row in rows] == [("clean", 2), ("first", 1)]
    assert "already exists" in str(invoke("tags", ds.uri, "--create", "first", code=1).exception)
    assert [row["version"] for row in run_json("tags", ds.uri, "--move", "first")] == [2, 2]
    assert [row["tag"] for row in run_json("tags", ds.uri, "--delete", "first")] == ["clean"]
    invoke("tags", ds.uri, "--delete", "first", code=1)
    assert "clean" in run("tags", ds.uri)


def test_branches_are_created_used_and_deleted(ds: lance.LanceDataset) -> None:
    (row,) = run_json("branches", ds.uri, "--create", "trial", "-v", "1")
    assert (row["branch"], row["parent_branch"], row["parent_version"]) == ("trial", None, 1)
    assert datetime.fromisoformat(row["create_at"]).utcoffset() == timedelta()
    run("delete", row["uri"], "-f", "id > 1", "--run")
    assert run_json("count", row["uri"])["rows"] == 1
    assert run_json("count", ds.uri)["rows"] == 2
    assert "add --run" in run("branches", ds.uri, "--delete", "trial", code=2)
    assert len(run_json("branches", ds.uri)) == 1
    assert run_json("branches", ds.uri, "--delete", "trial", "--run") == []
    invoke("branches", ds.uri, "--delete", "trial", "--run", code=1)


def test_delete_and_restore_change_nothing_without_run(ds: lance.LanceDataset) -> None:
    planned = run_json("delete", ds.uri, "-f", "id = 3")
    assert (planned["matching_rows"], planned["rows"], planned["version"]) == (1, 2, 2)
    result = invoke("restore", ds.uri, "1", "--json")
    assert json.loads(result.stdout) == {"uri": ds.uri, "restored_version": 1, "newest_version": 2, "rows": 3}
    assert result.stderr == "lancetable: nothing was changed; run again with --run\n"
    assert ds.latest_version == 2
    done = run_json("delete", ds.uri, "-f", "id = 3", "--run")
    assert (done["deleted_rows"], done["rows"], done["version"]) == (1, 1, 3)
    result = invoke("restore", ds.uri, "clean", "--run", "--json")
    assert json.loads(result.stdout) == {"uri": ds.uri, "restored_version": 2, "newest_version": 4, "rows": 2}
    assert result.stderr == ""
    assert lance.dataset(ds.uri).to_table(columns=["id"]).to_pydict() == {"id": [1, 3]}


def test_diff_shows_rows_fragments_and_columns(tmp_path: Path) -> None:
    ds = lance.write_dataset(pa.table({"id": [1, 2, 3], "s": ["a", "b", "c"]}), tmp_path / "t", max_rows_per_file=2)
    ds.update({"s": "'z'"}, where="id = 3")
    ds.delete("id = 1")
    ds.insert(pa.table({"id": [4], "s": ["d"]}))
    assert run_json("diff", ds.uri, "1") == {
        "uri": ds.uri, "older": 1, "newer": 4, "rows_before": 3, "rows_after": 3, "fragments_added": [2, 3],
        "fragments_removed": [1], "fragments_changed": [0], "columns_added": [], "columns_removed": [],
    }  # fmt: skip
    changes = run_json("diff", ds.uri, "1", "--key", "id")
    assert [changes[f"rows_{name}"] for name in ("inserted", "updated", "deleted")] == [1, 1, 1]
    ds.add_columns({"n": "id + 1"})
    ds.drop_columns(["s"])
    changes = run_json("diff", ds.uri, "1", "4")
    assert (changes["newer"], changes["columns_added"]) == (4, [])
    changes = run_json("diff", ds.uri, "4", "6")
    assert (changes["columns_added"], changes["columns_removed"]) == (["n int64"], ["s string"])
    assert "fragments changed" in run("diff", ds.uri, "1")


def test_diff_matches_rows_by_stable_row_id(tmp_path: Path) -> None:
    ds = lance.write_dataset(pa.table({"id": [1, 2, 3]}), tmp_path / "t", enable_stable_row_ids=True)
    ds.delete("id = 2")
    ds.insert(pa.table({"id": [4, 5]}))
    changes = run_json("diff", ds.uri, "1")
    assert [changes[f"rows_{name}"] for name in ("inserted", "updated", "deleted")] == [2, 0, 1]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("count {uri}", 0),
        ("fsck {uri}", 0),
        ("count {uri}/no", 1),
        ("count {uri} -f nothing=1", 1),
        ("restore {uri} 99", 1),
        ("diff {uri} 99", 1),
        ("branches {uri} --delete no --run", 1),
        ("inspect transaction {uri} -v 99", 1),
        ("count", 2),
        ("restore {uri}", 2),
        ("delete {uri}", 2),
        ("branches {uri} --delete no", 2),
        ("nothing {uri}", 2),
        ("head {uri} -n -1", 2),
        ("probe ftp://nobody.invalid/t", 2),
    ],
)
def test_exit_codes(
    ds: lance.LanceDataset,
    arguments: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["lancetable", *arguments.format(uri=ds.uri).split()])
    with pytest.raises(SystemExit) as ended:
        main()
    message = ended.value.code if isinstance(ended.value.code, str) else capsys.readouterr().err
    assert (1 if isinstance(ended.value.code, str) else ended.value.code) == code
    assert (message == "") == (code == 0 or "probe" in arguments)


def test_exit_code_of_fsck_with_problems_is_2(ds: lance.LanceDataset) -> None:
    next(Path(ds.uri, "data").iterdir()).unlink()
    invoke("fsck", ds.uri, code=2)


def test_fsck_of_a_clean_table_prints_no_empty_table(ds: lance.LanceDataset) -> None:
    found, _, _ = run("fsck", ds.uri).partition("Not checked:")
    assert found.split()[:2] == ["versions", "2"] and "kind" not in found
