"""Google Cloud Storage through both clients, on a local server that supports preconditions."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from integration.servers.gcs import Gcs, gcs
from lancetable.store.base import PutOutcome
from lancetable.store.clouds.fsspec_client import make_file_system
from lancetable.store.clouds.options import CloudOptions
from lancetable.store.open import open_store
from lancetable.testing.conformance import StoreAndPath, StoreSuite

pytest.importorskip("obstore")
# aiohttp warns about every upload of gcsfs above one megabyte.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


@pytest.fixture(scope="module")
def server() -> Iterator[Gcs]:
    with gcs("lab") as running:
        yield running


def _place(server: Gcs, client: str) -> StoreAndPath:
    if client == "obstore":
        return open_store(f"gs://lab/{uuid4()}", server.options)
    pytest.importorskip("gcsfs")
    return open_store((make_file_system(CloudOptions.parse("gcs", server.options)), f"lab/{uuid4()}"))


class _GcsSuite(StoreSuite):
    client = ""
    many_names = 30
    race_keys = 4
    thread_jobs = 8

    @pytest.fixture
    def store_and_path(self, server: Gcs) -> StoreAndPath:
        return _place(server, self.client)


class TestObstore(_GcsSuite):
    client = "obstore"


@pytest.mark.slow
class TestGcsfs(_GcsSuite):
    client = "fsspec"

    @pytest.fixture(autouse=True)
    def _needs_gcsfs(self) -> None:
        pytest.importorskip("gcsfs")


@pytest.mark.parametrize("size", [60, 300_000, 600_000])
def test_data_with_the_multipart_boundary_of_gcsfs_is_not_truncated(server: Gcs, size: int) -> None:
    """gcsfs truncates a simple upload at its multipart boundary, so such data uses a resumable upload."""
    store, base = _place(server, "fsspec")
    data = b"a\n--==0==\nb" * (size // 11)
    store.put(f"{base}/x", data)
    assert store.read_all(f"{base}/x") == data
    assert store.put_if_absent(f"{base}/y", data) is PutOutcome.WON
    assert store.put_if_absent(f"{base}/y", data + b"!") is PutOutcome.LOST
    assert store.read_all(f"{base}/y") == data


@pytest.mark.parametrize("client", ["obstore", "fsspec"])
def test_short_listing_costs_one_request(server: Gcs, client: str) -> None:
    """The newest versions of a table are found by such listings."""
    store, base = _place(server, client)
    for number in range(100):
        store.put(f"{base}/v/{number:03d}", b"x")
    store.put(f"{base}/v/.stray", b"x")
    store.put(f"{base}/v/a/b", b"x")
    for start, limit, wanted in (("0", 8, range(8)), (None, 3, range(2)), ("010", 4, range(11, 15)), ("099", 4, ())):
        server.replies.clear()
        found = [meta.name for meta in store.list_names(f"{base}/v", start_after=start, limit=limit)]
        assert found == [*([".stray"] if start is None else []), *(f"{number:03d}" for number in wanted)]
        assert len(server.replies) == 1
        assert client == "obstore" or sum(server.replies) <= 600 + 350 * limit, "obstore requests whole pages"
    assert store.list_names(f"{base}/none", start_after="0", limit=8) == []
    assert all(meta.size_bytes == 1 and meta.last_modified for meta in store.list_names(f"{base}/v", limit=5))
