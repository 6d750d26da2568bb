"""Conformance of S3 stores through both clients."""

from __future__ import annotations

from uuid import uuid4

import pytest

from integration.servers.moto_locked import Moto
from lancetable.store.open import open_store
from lancetable.testing.conformance import StoreAndPath, StoreSuite

pytest.importorskip("obstore")


def _place(s3: Moto, client: str) -> StoreAndPath:
    if client == "obstore":
        return open_store(f"s3://lab/{uuid4()}", s3.options)
    s3fs = pytest.importorskip("s3fs")
    options = {"key": s3.options["aws_access_key_id"], "secret": s3.options["aws_secret_access_key"]}
    return open_store((s3fs.S3FileSystem(endpoint_url=s3.endpoint, **options), f"lab/{uuid4()}"))


class _S3Suite(StoreSuite):
    client = ""
    many_names = 30
    race_keys = 4
    thread_jobs = 8

    @pytest.fixture
    def store_and_path(self, s3: Moto) -> StoreAndPath:
        return _place(s3, self.client)


class TestObstore(_S3Suite):
    client = "obstore"


class TestS3fs(_S3Suite):
    client = "fsspec"


@pytest.mark.slow
@pytest.mark.parametrize("client", ["obstore", "fsspec"])
def test_listing_of_more_than_one_page(s3: Moto, client: str) -> None:
    suite = StoreSuite()
    suite.test_listing_of_many_names(*_place(s3, client))
