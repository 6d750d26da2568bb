"""S3 through both clients: the suite every store passes, and what the network does to a conditional create."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from integration.servers.moto_locked import Moto
from lancetable.store.open import open_store
from lancetable.testing.conformance import Place, StoreSuite


class _S3Suite(StoreSuite):
    client = ""
    many_names = 1003
    race_keys = 5

    @pytest.fixture
    def place(self, s3: Moto) -> Place:
        return open_store(f"s3://lab/{uuid4()}", {**s3.options, "client": self.client})


class TestObstore(_S3Suite):
    client = "obstore"


class TestS3fs(_S3Suite):
    client = "fsspec"
