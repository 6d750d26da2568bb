"""Options of the data source: parsed once, refused with the remedy."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

from lancetable.errors import InvalidInputError
from lancetable.spark.options import SourceOptions


def test_options_are_parsed() -> None:
    options = SourceOptions.parse(
        {
            "Path": "file:/tmp/t.lance",
            "Columns": "id, price",
            "filter": "id > 3",
            "version": "7",
            "storage.key": "k",
            "vector.emb": "16",
            "batch_size": "10",
        }
    )
    assert options.uri == "/tmp/t.lance"
    assert options.columns == ("id", "price")
    assert options.version == 7
    assert options.storage_options == {"key": "k"}
    assert options.vector_dimensions == {"emb": 16}
    assert "storage_options" not in repr(options)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, "TEMPORARY VIEW"),
        ({"paths": '["a", "b"]'}, "one path"),
        ({"path": "x", "version": "zero"}, "version"),
        ({"path": "x", "version": "0"}, "version"),
        ({"path": "x", "version": "1", "tag": "t"}, "version and tag"),
        ({"path": "x", "colums": "a"}, "colums"),
        ({"path": "x", "batch_size": "-1"}, "batch_size"),
        ({"path": "x", "txnVersion": "3"}, "txnAppId"),
        ({"path": "x", "create": "maybe"}, "true or false"),
        ({"path": "x", "startingVersion": "first"}, "startingVersion"),
        ({"path": "x", "startingVersion": "1", "startingTimestamp": "2026-01-01"}, "pass one of them"),
        ({"path": "x", "continueFromCheckpoint": "yes"}, "continueFromCheckpoint must be true or false"),
    ],
)
def test_error_names_the_invalid_option(given: dict[str, str], names: str) -> None:
    with pytest.raises(InvalidInputError, match=names):
        SourceOptions.parse(given)


@pytest.mark.parametrize(
    ("use", "given", "names"),
    [
        ("batch_read", {"startingVersion": "3"}, "startingVersion applies only to readStream"),
        ("batch_read", {"startingTimestamp": "2026-01-01"}, "startingTimestamp applies only to readStream"),
        ("batch_read", {"maxVersionsPerTrigger": "3"}, "maxVersionsPerTrigger applies only to readStream"),
        ("batch_read", {"skipChangeCommits": "true"}, "skipChangeCommits applies only to readStream"),
        ("batch_write", {"txnAppId": "app"}, "'app' requires txnVersion"),
        ("batch_write", {"continueFromCheckpoint": "true"}, "applies only to writeStream"),
        ("batch_write", {"filter": "id > 3"}, "filter applies only to reads"),
        ("stream_write", {"txnAppId": "app", "txnVersion": "3"}, "txnVersion applies only to batch writes"),
        ("stream_write", {"version": "3"}, "version applies only to reads"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(use: str, given: dict[str, str], names: str) -> None:
    options = SourceOptions.parse({"path": "x", **given})
    with pytest.raises(InvalidInputError, match=names):
        getattr(options, f"for_{use}")()
