"""Feature flags of manifests: known, unknown and paired bits, and the words that pylance writes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.format import feature_flags
from lancetable.proto import table_pb2

DELETED = table_pb2.DataFragment(deletion_file=table_pb2.DeletionFile())
BASE = table_pb2.BasePath(path="/base")

# (fields of the manifest, other arguments, (reader word, writer word)); all but one have a transaction file
WORDS = [
    ({}, {}, (0, 0)),
    ({"fragments": [DELETED]}, {}, (1, 1)),
    ({"fragments": [DELETED]}, {"has_deletions": False}, (0, 0)),
    ({}, {"has_deletions": True}, (1, 1)),
    ({}, {"stable_row_ids": True}, (2, 2)),
    ({"config": {"a": "b"}}, {}, (0, 8)),
    ({"base_paths": [BASE]}, {}, (16, 16)),
    ({"transaction_file": ""}, {}, (0, 32)),
    ({}, {"indices": [table_pb2.IndexMetadata(covering_fields=[1])]}, (128, 128)),
    ({"schema_metadata": {feature_flags.MANAGED_BLOBS_KEY: b"true"}}, {}, (16384, 16384)),
    ({"config": {"a": "b"}, "base_paths": [BASE]}, {"has_deletions": True, "stable_row_ids": True}, (19, 27)),
    ({}, {"previous": (256 | 16384 | 1 | 2, 256 | 16384 | 8 | 32)}, (16640, 16640)),
]


@pytest.mark.parametrize(("fields", "arguments", "words"), WORDS)
def test_feature_words_of_a_manifest(fields, arguments, words):
    manifest = table_pb2.Manifest(**{"transaction_file": "t", **fields})
    assert feature_flags.compute(manifest, **arguments) == words


@pytest.mark.parametrize("bit", [0, 1, 2, 3, 4, 5, 7, 8, 14])
def test_known_bits_pass(bit):
    feature_flags.check_readable(1 << bit, "t", writer_flags=1 << bit)
    feature_flags.check_writable(1 << bit, "t", reader_flags=1 << bit)


@pytest.mark.parametrize("bit", [6, 9, 10, 12, 13, 15, 16, 17, 40, 63])
def test_unknown_bits_are_named(bit):
    with pytest.raises(UnsupportedFeatureError, match=rf"cannot read some/table.*bit {bit}\b") as caught:
        feature_flags.check_readable(1 << bit | 1, "some/table")
    assert caught.value.flags == 1 << bit
    assert "; " in str(caught.value)  # the remedy
    with pytest.raises(UnsupportedFeatureError, match=rf"cannot write some/table.*bit {bit}\b"):
        feature_flags.check_writable(1 << bit, "some/table")


def test_lineage_in_hidden_columns_is_read_but_not_written():
    feature_flags.check_readable(1 << 11, "t", writer_flags=1 << 11)
    with pytest.raises(UnsupportedFeatureError, match=r"cannot write t.*bit 11"):
        feature_flags.check_writable(1 << 11, "t", reader_flags=1 << 11)


def test_unknown_writer_bits_do_not_prevent_reads():
    feature_flags.check_readable(0, "t", writer_flags=1 << 15)


@pytest.mark.parametrize("words", [(256, 0), (0, 256), (16384, 0), (0, 16384), (0, 1024), (0, 65536)])
def test_paired_bits_are_required_in_both_words(words):
    with pytest.raises(CorruptFileError, match="one of the two"):
        feature_flags.check_readable(words[0], "t", writer_flags=words[1])


def test_bits_are_described_by_their_meaning():
    assert feature_flags.describe(0) == []
    assert feature_flags.describe(1 | 1 << 12 | 1 << 50) == [
        "bit 0 (deletion files)",
        "bit 12 (a fragment tree)",
        "bit 50",
    ]


def test_words_are_those_of_pylance(write_with_pylance, latest_manifest):
    dataset, manifest = write_with_pylance(pa.table({"a": [1, 2, 3]}), enable_stable_row_ids=True)
    seen = [manifest]
    dataset.delete("a = 1")
    seen.append(latest_manifest(dataset))
    dataset.update_config({"x": "y"})
    seen.append(latest_manifest(dataset))
    dataset.delete("true")
    seen.append(latest_manifest(dataset))
    for manifest in seen:
        words = feature_flags.compute(manifest.message, stable_row_ids=True)
        assert words == (manifest.reader_flags, manifest.writer_flags)
    assert [(m.reader_flags, m.writer_flags) for m in seen] == [(2, 2), (3, 3), (3, 11), (2, 10)]


def test_missing_transaction_file_sets_a_writer_bit():
    covering = table_pb2.IndexMetadata(covering_fields=[1])
    words = feature_flags.compute(table_pb2.Manifest(), stable_row_ids=False, indices=[covering])
    assert words == (feature_flags.COVERING_INDICES, feature_flags.COVERING_INDICES | feature_flags.NO_TRANSACTION_FILE)
