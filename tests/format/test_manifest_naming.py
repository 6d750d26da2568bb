"""Names of manifests in both naming schemes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.format import manifest_naming
from lancetable.format.manifest_naming import ManifestNamingScheme

V1, V2 = ManifestNamingScheme.V1, ManifestNamingScheme.V2
DETACHED = 2**63 + 17

MANIFEST_NAMES = [
    ("18446744073709551614.manifest", 1, V2),
    ("18446744073709551613.manifest", 2, V2),
    ("00000000000000000005.manifest", 2**64 - 6, V2),
    ("1.manifest", 1, V1),
    ("20.manifest", 20, V1),
    (f"d{DETACHED}.manifest", DETACHED, V2),
]


@pytest.mark.parametrize(("name", "version", "naming"), MANIFEST_NAMES)
def test_manifest_names_are_parsed(name, version, naming):
    assert manifest_naming.parse_manifest_name(name) == (version, naming)


@pytest.mark.parametrize(
    ("name", "version", "naming"), [case for case in MANIFEST_NAMES if case[1] < 2**63 or "d" in case[0][:1]]
)
def test_manifest_names_are_built(name, version, naming):
    assert manifest_naming.manifest_name(version, naming) == name
    assert manifest_naming.manifest_path("some/table", version, naming) == f"some/table/_versions/{name}"


@given(st.integers(0, 2**63 - 1), st.sampled_from(ManifestNamingScheme))
def test_manifest_names_round_trip(version, naming):
    assert manifest_naming.parse_manifest_name(manifest_naming.manifest_name(version, naming)) == (version, naming)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x.manifest",
        ".manifest",
        "1",
        "1.manifest-abc",
        ".tmp_3.manifest_0123",
        "latest_version_hint.json",
        "d5.manifest",
        "-1.manifest",
        "1.2.manifest",
        "99999999999999999999.manifest",
        "٣.manifest",
        "1.manifest.bak",
    ],
)
def test_names_of_other_files_are_not_parsed(name):
    assert manifest_naming.parse_manifest_name(name) is None


def test_detached_versions_are_recognized():
    assert manifest_naming.is_detached(DETACHED)
    assert not manifest_naming.is_detached(2**63 - 1)


def test_hint_is_beside_the_manifests():
    assert manifest_naming.hint_path("t") == "t/_versions/latest_version_hint.json"
