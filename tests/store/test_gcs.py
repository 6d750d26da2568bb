"""Google Cloud Storage through both clients, against a stand-in that keeps its preconditions."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from integration.servers.gcs import Gcs, gcs
from lancetable.store.base import PutOutcome
from lancetable.store.open import open_store
from lancetable.testing.conformance import Place, StoreSuite

pytest.importorskip("obstore")
# aiohttp says this of every upload of gcsfs beyond a megabyte.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


@pytest.fixture(scope="module")
def server() -> Iterator[Gcs]:
    with gcs("lab") as running:
        yield running


class _GcsSuite(StoreSuite):
    client = ""
    many_names = 30
    race_keys = 4
    thread_jobs = 8

    @pytest.fixture
    def place(self, server: Gcs) -> Place:
        return open_store(f"gs://lab/{uuid4()}", {**server.options, "client": self.client})


class TestObstore(_GcsSuite):
    client = "obstore"


@pytest.mark.slow
class TestGcsfs(_GcsSuite):
    client = "fsspec"

    @pytest.fixture(autouse=True)
    def _needs_gcsfs(self) -> None:
        pytest.importorskip("gcsfs")


@pytest.mark.parametrize("size", [60, 300_000, 600_000])
def test_data_that_looks_like_a_boundary_of_gcsfs(server: Gcs, size: int) -> None:
    """gcsfs cuts a simple upload at the text that separates its parts; such data must go another way."""
    pytest.importorskip("gcsfs")
    store, base = open_store(f"gs://lab/{uuid4()}", {**server.options, "client": "fsspec"})
    data = b"a\n--==0==\nb" * (size // 11)
    store.put(f"{base}/x", data)
    assert store.read_all(f"{base}/x") == data
    assert store.put_if_absent(f"{base}/y", data) is PutOutcome.WON
    assert store.put_if_absent(f"{base}/y", data + b"!") is PutOutcome.LOST
    assert store.read_all(f"{base}/y") == data
