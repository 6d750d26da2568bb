"""Versions of data files: names, numbers, and the pairs stored in footers and manifests."""

from __future__ import annotations

import pickle

import pytest

from lancetable.errors import CorruptFileError, InvalidInputError, UnsupportedFeatureError
from lancetable.format.version import FileVersion

# version, pair in footers, pair in manifests
PAIRS = [
    (FileVersion.LEGACY, (0, 2), (0, 2)),
    (FileVersion.V2_0, (0, 3), (2, 0)),
    (FileVersion.V2_1, (2, 1), (2, 1)),
    (FileVersion.V2_2, (2, 2), (2, 2)),
]


@pytest.mark.parametrize(("version", "footer", "manifest"), PAIRS)
def test_pairs_are_converted_in_both_directions(version, footer, manifest):
    assert version.footer_pair == footer
    assert version.manifest_pair == manifest
    assert FileVersion.from_footer(*footer) is version
    assert FileVersion.from_manifest_pair(*manifest) is version
    assert FileVersion.parse(version.number) is version
    assert FileVersion.from_number(version.number) is version
    assert FileVersion(version.number) is version
    assert pickle.loads(pickle.dumps(version)) is version


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("legacy", FileVersion.LEGACY),
        ("stable", FileVersion.V2_2),
        ("STABLE", FileVersion.V2_2),
        ("0.3", FileVersion.V2_0),
    ],
)
def test_names_are_parsed(name, version):
    assert FileVersion.parse(name) is version


def test_pairs_of_early_writers_are_read():
    assert FileVersion.from_footer(2, 0) is FileVersion.V2_0
    assert FileVersion.from_manifest_pair(0, 3) is FileVersion.V2_0
    assert FileVersion.from_manifest_pair(0, 0) is FileVersion.LEGACY
    assert FileVersion.from_footer(0, 1) is FileVersion.LEGACY


def test_unknown_and_unreleased_names_raise():
    with pytest.raises(InvalidInputError, match="Unknown Lance storage version"):
        FileVersion.parse("7.1")
    with pytest.raises(UnsupportedFeatureError, match=r"2\.2"):
        FileVersion.parse("next")


@pytest.mark.parametrize("name", ["stable", "legacy", "", "2", "x" * 1000])
def test_names_in_place_of_numbers_raise(name):
    with pytest.raises(CorruptFileError):
        FileVersion.from_number(name)


@pytest.mark.parametrize("number", ["2.3", "3.0", "2.10"])
def test_newer_numbers_are_unsupported(number):
    with pytest.raises(UnsupportedFeatureError, match=number):
        FileVersion.from_number(number)


def test_unknown_pairs_raise():
    with pytest.raises(CorruptFileError, match=r"0\.4"):
        FileVersion.from_footer(0, 4, "data/x.lance")
    with pytest.raises(UnsupportedFeatureError, match=r"2\.3.*data/x\.lance") as caught:
        FileVersion.from_footer(2, 3, "data/x.lance")
    assert caught.value.path == "data/x.lance"
