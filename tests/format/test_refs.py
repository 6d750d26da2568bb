"""Contents of tag and branch files, their names and times."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError, InvalidRefError
from lancetable.format.refs import (
    BranchContents,
    TagContents,
    check_branch_name,
    check_tag_name,
    format_time,
    parse_time,
)

TAG = b"""{
  "branch": null,
  "version": 1,
  "createdAt": "2026-11-21T12:01:16.087970214Z",
  "updatedAt": "2026-11-21T12:01:16.087970214Z",
  "manifestSize": 402,
  "metadata": {}
}"""
BRANCH = b"""{
  "parentBranch": "dev/x",
  "identifier": {
    "version_mapping": [
      [
        1,
        "e4f852e2aa834532a88c7e35281f939e"
      ],
      [
        2,
        "a979373a0d504ec886a2b9e80a1f972a"
      ]
    ]
  },
  "parentVersion": 2,
  "createAt": 1795262476,
  "manifestSize": 346,
  "metadata": {
    "a": "b"
  }
}"""


def test_contents_are_parsed_and_serialized():
    time = "2026-11-21T12:01:16.087970214Z"
    tag = TagContents(1, 402, None, time, time)
    assert TagContents.from_json(TAG) == tag
    assert tag.to_json() == TAG
    lineage = ((1, "e4f852e2aa834532a88c7e35281f939e"), (2, "a979373a0d504ec886a2b9e80a1f972a"))
    branch = BranchContents(2, 1795262476, 346, "dev/x", lineage, {"a": "b"})
    assert BranchContents.from_json(BRANCH) == branch
    assert branch.to_json() == BRANCH


def test_files_of_pylance_round_trip(write_with_pylance):
    dataset, _ = write_with_pylance(pa.table({"a": [1]}))
    dataset.tags.create("v1", 1)
    dataset.create_branch("dev/x")
    dataset.create_branch("sub", ("dev/x", 1))
    dataset.tags.create("on-branch", ("dev/x", 1))
    root = Path(dataset.uri) / "_refs"
    files = sorted(root.glob("*/*.json"))
    assert [file.name for file in files] == ["dev%2Fx.json", "sub.json", "on-branch.json", "v1.json"]
    for file in files:
        kind = TagContents if file.parent.name == "tags" else BranchContents
        assert kind.from_json(file.read_bytes()).to_json() == file.read_bytes()


def test_pylance_reads_serialized_tags(write_with_pylance):
    dataset, _ = write_with_pylance(pa.table({"a": [1]}))
    dataset.tags.create("v1", 1)
    file = Path(dataset.uri) / "_refs" / "tags" / "v2.json"
    ours = TagContents(1, 400, None, format_time(1), format_time(1_500_000_000), {"k": 'é"\n'})
    file.write_bytes(ours.to_json())
    assert dataset.tags.list()["v2"]["version"] == 1


def test_branch_name_main_is_read_as_none():
    assert TagContents.from_json(b'{"branch": "main", "version": 1, "manifestSize": 1}').branch is None
    branch = b'{"parentBranch": "main", "parentVersion": 1, "createAt": 1, "manifestSize": 1}'
    assert BranchContents.from_json(branch).parent_branch is None


def test_fields_that_older_writers_omit_have_defaults():
    assert TagContents.from_json(b'{"version":3,"manifestSize":10}') == TagContents(3, 10)
    branch = BranchContents.from_json(b'{"parentVersion":3,"createAt":5,"manifestSize":10}')
    assert branch == BranchContents(3, 5, 10)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[1]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"version":3}',
        b'{"version":3,"manifest_size":10}',
        b'{"version":-1,"manifestSize":10}',
        b'{"version":true,"manifestSize":10}',
        b'{"version":1.5,"manifestSize":10}',
        b'{"version":18446744073709551616,"manifestSize":10}',
        b'{"version":3,"manifestSize":10,"branch":7}',
        b'{"version":3,"manifestSize":10,"metadata":{"a":1}}',
        b'{"parentVersion":3,"createAt":5,"manifestSize":10,"identifier":{"version_mapping":[[1]]}}',
        b'{"parentVersion":3,"createAt":5,"manifestSize":10,"identifier":{"version_mapping":7}}',
        b'{"parentVersion":3,"createAt":5,"manifestSize":10,"identifier":{"version_mapping":[[1e999,"x"]]}}',
    ],
)
def test_invalid_files_raise(data):
    for kind in (TagContents, BranchContents):
        with pytest.raises(CorruptFileError) as caught:
            kind.from_json(data, "refs/x.json")
        assert caught.value.path == "refs/x.json"


GOOD_TAGS = ["v1", "a.b", "-a", "_", "é", "1", "v1.0-rc_2"]
BAD_TAGS = ["", "a b", ".a", "a.", "a..b", "a.lock", "a/b", "a\\b", "a\n", "..", "x" * 300]
GOOD_BRANCHES = ["dev", "dev/x", "x.lock/y", ".a", "-a", "é", "a/b/c"]
BAD_BRANCHES = ["", "main", "a//b", "/a", "a/", "a/b.lock", "a\\b", "a..b", "a b", "..", "a/./b", "x" * 300]


@pytest.mark.parametrize(
    ("check", "name"),
    [*[(check_tag_name, name) for name in GOOD_TAGS], *[(check_branch_name, name) for name in GOOD_BRANCHES]],
)
def test_valid_names_are_accepted(check, name):
    assert check(name) == name


@pytest.mark.parametrize(
    ("check", "name"),
    [*[(check_tag_name, name) for name in BAD_TAGS], *[(check_branch_name, name) for name in BAD_BRANCHES]],
)
def test_invalid_names_raise(check, name):
    with pytest.raises(InvalidRefError, match="Ref is invalid"):
        check(name)


def test_pylance_accepts_and_rejects_the_same_names(write_with_pylance):
    dataset, _ = write_with_pylance(pa.table({"a": [1]}))
    for name in GOOD_TAGS:
        dataset.tags.create(name, 1)
    for name in BAD_TAGS:
        with pytest.raises((OSError, ValueError)):
            dataset.tags.create(name, 1)
    for name in GOOD_BRANCHES[:-1]:
        dataset.create_branch(name)
    for name in set(BAD_BRANCHES) - {"a/./b"}:  # pylance accepts this name and normalizes it to a/b
        with pytest.raises((OSError, ValueError)):
            dataset.create_branch(name)


@given(st.integers(-(10**18), 4 * 10**18))
def test_times_round_trip(nanoseconds):
    assert parse_time(format_time(nanoseconds)) == nanoseconds


def test_times_are_formatted_and_parsed():
    assert format_time(0) == "1970-01-01T00:00:00Z"
    assert format_time(1_500_000_000) == "1970-01-01T00:00:01.500Z"
    assert format_time(1_000_000_001) == "1970-01-01T00:00:01.000000001Z"
    assert parse_time("1970-01-01T02:00:00.5+02:00") == 500_000_000
    for text in ("", "now", "1970-01-01", "1970-01-01T00:00:00", "1970-13-01T00:00:00Z"):
        with pytest.raises(ValueError, match=r"\w"):
            parse_time(text)
