"""Paths and names of the files of a table, and the refusal of unsafe paths."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError
from lancetable.format import paths


def test_paths_of_files():
    assert paths.data_path("t", "a.lance") == "t/data/a.lance"
    assert paths.data_path("", "a.lance") == "data/a.lance"
    assert paths.data_path("/", "a.lance") == "/data/a.lance"
    assert paths.transaction_path("t", paths.transaction_name(3, "u-1")) == "t/_transactions/3-u-1.txn"
    assert paths.deletion_path("t", 1, 2, 2**64 - 1, "bin") == "t/_deletions/1-2-18446744073709551615.bin"
    assert paths.tag_path("t", "v1") == "t/_refs/tags/v1.json"
    assert paths.branch_path("t", "dev/x") == "t/_refs/branches/dev%2Fx.json"
    assert paths.branch_root("t", "dev/x") == "t/tree/dev/x"


def test_deletion_and_transaction_names_are_parsed():
    assert paths.parse_deletion_name("1-2-3.arrow") == (1, 2, 3, "arrow")
    assert paths.parse_deletion_name("1-2-18446744073709551615.bin") == (1, 2, 2**64 - 1, "bin")
    for name in ("1-2.arrow", "1-2-3.txt", "a-2-3.bin", "1-2-3", "1-2-18446744073709551616.bin"):
        assert paths.parse_deletion_name(name) is None
    assert paths.parse_transaction_name("3-e4f852e2-aa83.txn") == (3, "e4f852e2-aa83")
    for name in ("3.txn", "x-y.txn", "3-u.json", "3-.txn"):
        assert paths.parse_transaction_name(name) is None


def test_data_file_names_have_the_form_of_other_writers():
    names = {paths.new_data_file_name() for _ in range(50)}
    assert len(names) == 50
    assert all(re.fullmatch(r"[01]{24}[0-9a-f]{26}\.lance", name) for name in names)


HOSTILE = [
    "",
    ".",
    "..",
    "/etc/passwd",
    "../x",
    "a/../../x",
    "a/..",
    "a/./b",
    "a//b",
    "a/",
    "//host/x",
    "a\\b",
    "..\\x",
    "a\0b",
    "a\nb",
    "file:///etc/passwd",
    "s3://bucket/x",
    "C:x",
    "c:/windows",
    "x" * 5000,
    "é" * 600,
]


@pytest.mark.parametrize("path", HOSTILE)
def test_hostile_paths_are_refused(path):
    with pytest.raises(CorruptFileError) as caught:
        paths.check_relative(path)
    message = str(caught.value)
    assert message.isprintable() and message.isascii() and len(message) < 500
    for build in (paths.data_path, paths.transaction_path, paths.tag_path, paths.branch_root):
        with pytest.raises(CorruptFileError):
            build("t", path)


@pytest.mark.parametrize(
    "path", ["a.lance", "sub/a.lance", "a b.lance", "..a", "a..b", ".hidden", "é.lance", "a/b:c", "%2e%2e"]
)
def test_ordinary_paths_are_accepted(path):
    assert paths.check_relative(path) == path


@given(st.text(max_size=20))
def test_accepted_paths_stay_below_the_root(path):
    try:
        paths.check_relative(path)
    except CorruptFileError:
        return
    assert not path.startswith("/") and "\\" not in path and "\0" not in path
    assert not {"", ".", ".."} & set(path.split("/"))
