"""Hostile paths in the files of a table never lead to I/O outside of its root.

A child process reads and changes tables with hostile paths. An audit hook of the interpreter records the files and
sockets that it opens, and a wrapper of `os.stat` records the files that it looks up. This file is also the program of
the child process:

    test_escapes.py DIRECTORY [untrusted]   ->   one line of JSON for each case: its name, unexpected errors, paths
                                                 touched outside, and the kinds of outcomes

With `untrusted`, base paths and symbolic links may not lead to other directories either.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import LanceError
from lancetable.proto import table_pb2
from lancetable.table.manifest_files import read_manifest
from lancetable.table.version import open_version

# `outside` is a directory beside the table with files that a path could name.
PATHS = [
    "../outside/secret.lance",
    "data/../../outside/secret.lance",
    "../../outside/secret.lance",
    "./../outside/secret.lance",
    "{outside}/secret.lance",
    "file://{outside}/secret.lance",
    "FILE:///{outside}/secret.lance",
    "..\\outside\\secret.lance",
    "%2e%2e/outside/secret.lance",
    "%2e%2e%2foutside%2fsecret.lance",
    "..%2foutside/secret.lance",
    "x/../../outside/secret.lance",
    "//{outside}/secret.lance",
    "/dev/zero",
    "/proc/self/environ",
    "~/secret.lance",
    "C:\\secret.lance",
    "s3://bucket/secret.lance",
    "http://127.0.0.1:9/secret.lance",
    "\uff0e\uff0e/outside/secret.lance",
    "\u2025/outside/secret.lance",
    "..",
    ".",
    "",
    "/",
    "a\0b",
    "../outside/secret.lance\0",
    "\n../outside/secret.lance",
    " ../outside/secret.lance",
    "a" * 5000,
    "../" * 400 + "etc/passwd",
    "%252e%252e/outside/secret.lance",
    "..%5coutside%5csecret.lance",
    "..%00/outside/secret.lance",
    "%00",
    "..;/outside/secret.lance",
    "..//outside//secret.lance",
    "..././outside/secret.lance",
    "....//outside/secret.lance",
    "x/./../../outside/secret.lance",
    "../outside/./secret.lance",
    "../t/../outside/secret.lance",
    "../outside",
    "../outside/",
    "\\\\server\\share\\secret.lance",
    "//server/share/secret.lance",
    "\\\\?\\C:\\secret.lance",
    "c:/secret.lance",
    "C:secret.lance",
    "file:secret.lance",
    "file:../outside/secret.lance",
    "file://localhost{outside}/secret.lance",
    "memory://secret.lance",
    "gs://bucket/secret.lance",
    "az://container/secret.lance",
    "s3:/bucket/secret.lance",
    "https://user:word@127.0.0.1:9/secret.lance",
    "ftp://127.0.0.1:9/secret.lance",
    "data:,secret",
    "$HOME/secret.lance",
    "`id`",
    "\u2215outside\u2215secret.lance",
    "\u202e../outside/secret.lance",
    "\t../outside/secret.lance",
    "../outside/secret.lance ",
]
OTHER_AUTHORITIES = [
    "s3://bucket/x",
    "http://127.0.0.1:9/x",
    "gs://b/x",
    "memory://x",
    "s3+ddb://b/x?ddbTableName=t",
    "az://c/x",
]

Change = Callable[[table_pb2.Manifest, str], None]
SECTIONS: list[bytes] = []  # the index section of the next manifest


def data_path(message: table_pb2.Manifest, path: str) -> None:
    message.fragments[0].files[0].path = path


def data_path_below_a_base(message: table_pb2.Manifest, path: str) -> None:
    message.base_paths.add(id=1, path=os.environ["LANCETABLE_TEST_ROOT"], is_dataset_root=True)
    data_path(message, path)
    message.fragments[0].files[0].base_id = 1


def row_ids(message: table_pb2.Manifest, path: str) -> None:
    message.reader_feature_flags |= 2
    message.writer_feature_flags |= 2
    for fragment in message.fragments:
        fragment.external_row_ids.path = path
        fragment.external_row_ids.size = 100


def created_at(message: table_pb2.Manifest, path: str) -> None:
    for fragment in message.fragments:
        fragment.external_created_at_versions.path = path
        fragment.external_created_at_versions.size = 100
        fragment.external_last_updated_at_versions.path = path


def transaction_file(message: table_pb2.Manifest, path: str) -> None:
    message.transaction_file = path


def index_file(message: table_pb2.Manifest, path: str) -> None:
    index = table_pb2.IndexMetadata(name="i", fields=[0])
    index.uuid.uuid = bytes(16)
    index.files.add(path=path, size_bytes=3)
    SECTIONS.append(table_pb2.IndexSection(indices=[index]).SerializeToString())


def branch(message: table_pb2.Manifest, path: str) -> None:
    message.branch = path


def base_path(message: table_pb2.Manifest, path: str) -> None:
    message.base_paths.add(id=1, path=path, is_dataset_root=True)
    for fragment in message.fragments:
        fragment.files[0].base_id = 1
        fragment.deletion_file.base_id = 1


LINKS = ["data", "_deletions", "_versions", "_transactions", "_refs", "_refs/tags/t.json", "tree", "new", "data/new"]

IN_MANIFEST: dict[str, tuple[Change, list[str]]] = {
    "data file": (data_path, PATHS),
    "data file below a base": (data_path_below_a_base, PATHS),
    "row ids": (row_ids, PATHS),
    "row versions": (created_at, PATHS),
    "transaction": (transaction_file, PATHS),
    "index": (index_file, PATHS),
    "branch": (branch, PATHS),
    # Base paths may name other directories, but not other stores, which only the user may open.
    "base path": (base_path, OTHER_AUTHORITIES),
}

QUESTIONS: list[Callable[[Any], Any]] = [
    lambda ds: ds.to_table(with_row_id=True),
    lambda ds: ds.to_table(columns=["id", "_row_created_at_version", "_row_last_updated_at_version"]),
    lambda ds: ds.take([0, 3]),
    lambda ds: ds._take_rows([0, 3]),
    lambda ds: ds.versions(),
    lambda ds: ds.get_transactions(),
    lambda ds: ds.read_transaction(ds.version),
    lambda ds: ds.stats.data_stats(),
    lambda ds: [fragment.metadata.to_json() for fragment in ds.get_fragments()],
    lambda ds: [fragment.deletion_file() for fragment in ds.get_fragments()],
    lambda ds: ds.get_fragments()[0].delete("id = 5"),
    lambda ds: ds.validate(),
    lambda ds: ds.tags.list(),
    lambda ds: ds.tags.get_version("t"),
    lambda ds: ds.checkout_version("t").to_table(),
    lambda ds: ds.checkout_latest(),
    lambda ds: ds.latest_version,
    lambda ds: ds.all_files().read_all(),
    lambda ds: ds.delete("id = 6"),
    lambda ds: ds.insert(pa.table({"id": pa.array([50], pa.int64())})),
    lambda ds: ds.restore(),
    lambda ds: ds.tags.create("new", 1),
    lambda ds: ds.tags.delete("t"),
]
MAINTENANCE: list[Callable[[Any], Any]] = [
    lambda ds: lancetable.fsck(ds.uri, untrusted=UNTRUSTED),
    lambda ds: ds.explain_cleanup_old_versions(),
]
UNTRUSTED = sys.argv[2:] == ["untrusted"]


# ---------------------------------------------------------------------------------------------------------------- child


def make_table(uri: Path) -> None:
    lancetable.write_dataset({"id": list(range(10)), "s": ["x"] * 10}, uri)
    lancetable.dataset(uri).delete("id = 2")
    lancetable.dataset(uri).tags.create("t", 1)


def with_manifest(uri: Path, change: Change, path: str) -> None:
    """Replace the newest manifest by a changed one without an inline transaction, so the transaction file is read."""
    version = open_version(str(uri))
    message = table_pb2.Manifest()
    message.CopyFrom(read_manifest(version.store, version.location).manifest.message)
    change(message, path)
    message.ClearField("transaction_section")
    section = b""
    if SECTIONS:
        message.index_section, index = 0, SECTIONS.pop()
        section = struct.pack("<I", len(index)) + index
    body = message.SerializeToString()
    place = Path(version.location.path)
    place.unlink()
    # `pack` would add an inline transaction.
    footer = struct.pack("<qHH4s", len(section), 0, 2, b"LANC")
    place.write_bytes(section + struct.pack("<I", len(body)) + body + footer)


def cases(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield a description and the URI of tables with one malicious path each."""
    outside = str(directory / "outside")
    for kind, (change, paths) in IN_MANIFEST.items():
        if kind == "base path" and UNTRUSTED:
            paths = [*paths, *PATHS, outside, str(directory), f"file://{outside}"]
        for number, path in enumerate(paths):
            uri = directory / "tables" / "t"
            shutil.rmtree(uri, ignore_errors=True)
            shutil.copytree(directory / "whole", uri)
            os.environ["LANCETABLE_TEST_ROOT"] = str(uri)
            try:
                with_manifest(uri, change, path.format(outside=outside) if "{" in path else path)
            except ValueError:
                continue  # not a valid protobuf string
            yield f"{kind} {number} {path[:40]!r}", uri
    for number, path in enumerate(PATHS):
        uri = directory / "tables" / "t"
        shutil.rmtree(uri, ignore_errors=True)
        shutil.copytree(directory / "whole", uri)
        path = path.format(outside=outside) if "{" in path else path
        (uri / "_refs" / "tags" / "t.json").write_text(json.dumps({"branch": path, "version": 1, "manifestSize": 10}))
        (uri / "_versions" / "latest_version_hint.json").write_text(json.dumps({"version": path}))
        yield f"tag {number} {path[:40]!r}", uri


def links(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield a description and the URI of tables with a link to a valid directory or file outside."""
    for name in LINKS:
        for relative in (False, True):
            uri = directory / "tables" / "t"
            shutil.rmtree(uri, ignore_errors=True)
            shutil.copytree(directory / "whole", uri)
            inside, target = uri / name, directory / "outside" / "whole" / name
            if inside.is_dir():
                shutil.rmtree(inside)
            inside.unlink(missing_ok=True)
            inside.symlink_to(os.path.relpath(target, inside.parent) if relative else target)
            yield f"link {name} {relative}", uri


def run(directory: Path) -> None:
    warnings.simplefilter("ignore")
    touched: list[str] = []
    watching = False

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if not watching:
            return
        if event == "open" or event.startswith(("os.", "shutil.", "pathlib.", "glob.")):
            touched.extend(
                os.path.realpath(os.path.join(os.getcwd(), os.fsdecode(each)))
                for each in arguments
                if isinstance(each, (str, bytes, os.PathLike))
            )
        elif event.startswith(("socket.connect", "socket.getaddrinfo", "urllib", "subprocess", "os.system")):
            touched.append(f"{event} {arguments}")

    make_table(directory / "whole")
    (directory / "outside").mkdir()
    (directory / "outside" / "secret.lance").write_bytes(b"secret")
    shutil.copytree(directory / "whole", directory / "outside" / "whole")
    stat = os.stat

    def watched_stat(path: Any, *arguments: Any, **named: Any) -> os.stat_result:
        if watching and isinstance(path, str):
            touched.append(os.path.realpath(path))
        return stat(path, *arguments, **named)

    # Modules that are imported on first use are imported before the watch begins.
    for question in QUESTIONS + MAINTENANCE:
        shutil.rmtree(directory / "tables" / "t", ignore_errors=True)
        shutil.copytree(directory / "whole", directory / "tables" / "t")
        question(lancetable.dataset(directory / "tables" / "t"))
    sys.addaudithook(watch)
    os.stat = watched_stat  # type: ignore[assignment]  # calls of stat are not audited
    for name, uri in itertools.chain(cases(directory), links(directory) if UNTRUSTED else ()):
        touched.clear()
        outcomes: set[str] = set()
        watching = True
        try:
            for question in QUESTIONS + MAINTENANCE * name.startswith(("index", "base", "link")):
                outcomes.add(outcome(question, uri))
        finally:
            watching = False
        allowed = (os.path.realpath(uri), sys.prefix, sys.base_prefix, os.path.dirname(lancetable.__file__))
        outside = sorted({path for path in touched if not path.startswith(allowed) and path not in IGNORED})
        foreign = sorted(each for each in outcomes if each.startswith("foreign"))
        print(json.dumps([name, foreign, outside, sorted(outcomes)]), flush=True)


# Audit events also pass modes, which `watch` resolves like paths.
IGNORED = {os.path.normpath(os.path.join(os.getcwd(), mode)) for mode in ("r", "rb", "w", "wb", "x", "")}


def outcome(question: Callable[[Any], Any], uri: Path) -> str:
    try:
        question(lancetable.dataset(uri, untrusted=UNTRUSTED))
    except LanceError as error:
        return type(error).__name__
    except Exception as error:
        return f"foreign {error!r}"
    return "answer"


@pytest.mark.parametrize("mode", ["trusted", "untrusted"])
def test_paths_outside_of_the_table_are_rejected(tmp_path: Path, mode: str) -> None:
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path), mode],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "LANCETABLE_FSYNC": "0"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) >= 420
    assert not [line for line in lines if line[2]], [line[:3] for line in lines if line[2]][:5]
    assert not [line for line in lines if line[1]], [line[:2] for line in lines if line[1]][:5]
    links = [line for line in lines if line[0].startswith("link ")]
    assert len(links) == (2 * len(LINKS) if mode == "untrusted" else 0)
    assert all("UntrustedPathError" in line[3] for line in links)
    for kind in ("data file", "base path"):
        refused = [line for line in lines if line[0].startswith(f"{kind} ")]
        assert refused and all(len(line[3]) > 1 for line in refused), "every one of them must be refused by some reads"


if __name__ == "__main__":
    run(Path(sys.argv[1]))
