"""Conformance of S3 stores through both clients."""

from __future__ import annotations

from uuid import uuid4

import pytest

from integration.servers.moto_locked import Moto
from lancetable.store.open import open_store
from lancetable.testing.conformance import Place, StoreSuite

pytest.importorskip("obstore")


class _S3Suite(StoreSuite):
    client = ""
    many_names = 30
    race_keys = 4
    thread_jobs = 8

    @pytest.fixture
    def place(self, s3: Moto) -> Place:
        return open_store(f"s3://lab/{uuid4()}", {**s3.options, "client": self.client})


class TestObstore(_S3Suite):
    client = "obstore"


class TestS3fs(_S3Suite):
    client = "fsspec"


@pytest.mark.slow
@pytest.mark.parametrize("client", ["obstore", "fsspec"])
def test_listing_of_more_than_one_page(s3: Moto, client: str) -> None:
    suite = StoreSuite()
    suite.test_listing_of_many_names(open_store(f"s3://lab/{uuid4()}", {**s3.options, "client": client}))
