"""Local store: conformance, memory maps, exclusive creation, durability, forks and faults."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from lancetable.errors import InvalidInputError, LanceError, NotFoundError, StoreError, UnsupportedFeatureError
from lancetable.store import local, memory_maps
from lancetable.store.base import ByteRange, Durability, PutOutcome
from lancetable.store.local import LocalStore
from lancetable.store.memory_maps import MapCache
from lancetable.testing.conformance import StoreAndPath, StoreSuite
from lancetable.testing.os_faults import FaultyOs


class TestLocalStore(StoreSuite):
    @pytest.fixture(params=["mapped", "pread", "synced"])
    def store_and_path(self, request: pytest.FixtureRequest, tmp_path: Path) -> StoreAndPath:
        kind = request.param
        return LocalStore(fsync=kind == "synced", mmap=kind != "pread"), str(tmp_path / "place")


class TestNetworkFileSystem(StoreSuite):
    """Network devices are not mapped: all files are read with pread."""

    @pytest.fixture
    def store_and_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreAndPath:
        monkeypatch.setattr(memory_maps, "is_network_device", lambda device: True)
        monkeypatch.setattr(local, "_MAPS", MapCache())
        return LocalStore(fsync=False), str(tmp_path / "place")

    def test_files_are_not_mapped(self, store_and_path: StoreAndPath) -> None:
        store, base = store_and_path
        store.put(f"{base}/x", b"1" * 100_000)
        assert store.read(f"{base}/x", 0, 50_000).obj.__class__ is bytes


# ---------------------------------------------------------------------------------------------------------- maps


def test_repeated_reads_share_one_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, path = LocalStore(fsync=False), f"{tmp_path}/x"
    store.put(path, b"0123456789")
    made = []
    original = memory_maps.map_file
    monkeypatch.setattr(memory_maps, "map_file", lambda *args: made.append(args) or original(*args))
    for _ in range(5):
        assert store.read(path, 2, 4) == b"23"
        assert store.read_many(path, [ByteRange(0, 1)]) == [b"0"]
    assert len(made) == 1


def _mapped_bytes_in_memory(path: str) -> int:
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    next(line for line in lines if line.endswith(path))
    return next(int(line.split()[1]) for line in lines if line.startswith("Rss:")) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_released_pages_leave_the_memory_of_the_process_and_are_read_again(tmp_path: Path) -> None:
    store, path = LocalStore(fsync=False), f"{tmp_path}/x"
    store.release_pages(path)  # a file that is not mapped
    content = bytes(range(256)) * 40_000
    store.put(path, content)
    view = store.read(path, 0, len(content))
    assert view == content
    assert _mapped_bytes_in_memory(path) == len(content)
    store.release_pages(path)
    assert _mapped_bytes_in_memory(path) == 0
    assert view == content


def test_replaced_or_grown_file_is_mapped_again(tmp_path: Path) -> None:
    store, path = LocalStore(fsync=False), f"{tmp_path}/x"
    store.put(path, b"old bytes")
    assert store.read(path, 0, 3) == b"old"
    store.put(path, b"new bytes")
    assert store.read(path, 0, 3) == b"new"
    with open(path, "ab") as file:
        file.write(b" and more")
    assert store.read(path, 9, 18) == b" and more"
    os.unlink(path)
    with pytest.raises(NotFoundError):
        store.read(path, 0, 3)


def test_map_cache_is_bounded_and_slices_survive_eviction(tmp_path: Path) -> None:
    cache = MapCache(limit=8)
    views = []
    for i in range(40):
        path = tmp_path / str(i)
        path.write_bytes(bytes([i]) * 100)
        view = cache.view(str(path))
        assert view is not None
        views.append(view[10:20])
        assert len(cache._maps) <= 8
    assert [bytes(view) for view in views] == [bytes([i]) * 10 for i in range(40)]


def test_eviction_keeps_recently_used_maps(tmp_path: Path) -> None:
    cache = MapCache(limit=8)
    for i in range(9):
        (tmp_path / str(i)).write_bytes(b"x")
    for i in range(8):
        cache.view(str(tmp_path / str(i)))
    for entry in cache._maps.values():
        entry.used = False
    cache.view(str(tmp_path / "0"))
    cache.view(str(tmp_path / "8"))
    assert str(tmp_path / "0") in cache._maps
    assert str(tmp_path / "1") not in cache._maps


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_maps_hold_no_descriptors_and_are_unmapped_with_the_last_array(tmp_path: Path) -> None:
    store = LocalStore(fsync=False)
    paths = [f"{tmp_path}/{i}" for i in range(50)]
    for path in paths:
        store.put(path, b"\1\0\0\0" * 1000)
    before = len(os.listdir("/proc/self/fd"))
    arrays = [
        pa.Array.from_buffers(pa.int32(), 1000, [None, pa.py_buffer(store.read(path, 0, 4000))]) for path in paths
    ]
    assert len(os.listdir("/proc/self/fd")) == before
    local._MAPS.clear()
    gc.collect()
    assert Path("/proc/self/maps").read_text().count(str(tmp_path)) == 50
    assert all(array.to_pylist() == [1] * 1000 for array in arrays)
    del arrays
    gc.collect()
    assert Path("/proc/self/maps").read_text().count(str(tmp_path)) == 0


def test_files_are_read_if_mapping_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, size: int) -> memoryview:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(memory_maps, "map_file", refuse)
    store, path = LocalStore(fsync=False), f"{tmp_path}/x"
    store.put(path, b"0123456789" * 10_000)
    assert store.read(path, 5, 8) == b"567"
    assert store.read_many(path, [ByteRange(50_000, 50_002), ByteRange(1, 2)]) == [b"01", b"1"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipe_is_not_an_object_and_does_not_block(tmp_path: Path) -> None:
    store, path = LocalStore(fsync=False), f"{tmp_path}/pipe"
    os.mkfifo(path)
    for call in (lambda: store.read(path, 0, 1), lambda: store.read_all(path), lambda: store.size(path)):
        with pytest.raises(NotFoundError):
            call()
    with pytest.raises(NotFoundError):
        LocalStore(mmap=False).read(path, 0, 1)


def test_huge_range_is_rejected_before_allocation(tmp_path: Path) -> None:
    store, path = LocalStore(fsync=False, mmap=False), f"{tmp_path}/x"
    store.put(path, b"x" * 100)
    with pytest.raises(LanceError):
        store.read(path, 0, 1 << 50)


@pytest.mark.parametrize("path", ["a\0b", "\0"])
def test_path_with_a_nul_character_is_rejected(tmp_path: Path, path: str) -> None:
    store = LocalStore(fsync=False)
    whole = f"{tmp_path}/{path}"
    for call in (
        lambda: store.read(whole, 0, 1),
        lambda: store.read_all(whole),
        lambda: store.find(whole),
        lambda: store.put(whole, b""),
        lambda: store.put_if_absent(whole, b""),
        lambda: store.open_writer(whole),
        lambda: store.list_names(whole),
        lambda: store.delete([whole]),
    ):
        with pytest.raises(InvalidInputError):
            call()


# ------------------------------------------------------------------------------------------------------- exclusively


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="renameat2 is a Linux call")
def test_exclusive_rename_is_used_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*args: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    store = LocalStore(fsync=False)
    assert store.put_if_absent(f"{tmp_path}/x", b"one") is PutOutcome.WON
    assert store.put_if_absent(f"{tmp_path}/x", b"two") is PutOutcome.LOST
    assert store.read_all(f"{tmp_path}/x") == b"one"
    assert os.listdir(tmp_path) == ["x"]
    monkeypatch.setattr(local, "_exclusive_rename", lambda source, target: 38)
    with pytest.raises(UnsupportedFeatureError, match="commit_lock"):
        store.put_if_absent(f"{tmp_path}/y", b"one")
    assert os.listdir(tmp_path) == ["x"]


def test_link_with_a_lost_reply_has_won(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.link

    def lost_answer(source: str, target: str) -> None:
        original(source, target)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "link", lost_answer)
    assert LocalStore(fsync=False).put_if_absent(f"{tmp_path}/x", b"one") is PutOutcome.WON


# --------------------------------------------------------------------------------------------------------- durability


def test_files_and_directories_are_synced_before_put_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = _record_syncs(monkeypatch)
    store, base = LocalStore(), f"{tmp_path}/t"
    store.put(f"{base}/refs/x", b"1")
    assert events[0].startswith("file .tmp_x_")
    assert set(events[1:]) == {f"directory {tmp_path}", f"directory {base}", f"directory {base}/refs"}
    events.clear()
    store.put_if_absent(f"{base}/refs/y", b"1")
    assert events[0].startswith("file .tmp_y_")
    assert events[1:] == [f"directory {base}/refs"]
    events.clear()
    store.put(f"{base}/refs/z", b"1", durability=Durability.NEVER)
    store.sync(base)
    assert events == []


def test_sync_waits_for_closed_files_and_their_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = _record_syncs(monkeypatch)
    store, base = LocalStore(), f"{tmp_path}/t"
    with store.open_writer(f"{base}/data/a.lance") as writer:
        writer.write(b"1" * 100)
    store.put(f"{base}/txn/b", b"2", durability=Durability.AT_SYNC)
    store.sync(f"{tmp_path}/elsewhere")
    assert f"directory {base}/data" not in events
    store.sync(base)
    assert {event for event in events if event.startswith("file")} == {"file a.lance", "file b"}
    assert {f"directory {d}" for d in (base, f"{base}/data", f"{base}/txn", str(tmp_path))} <= set(events)
    events.clear()
    store.sync(base)
    assert events == []


def test_store_without_fsync_syncs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = _record_syncs(monkeypatch)
    store = LocalStore(fsync=False)
    store.put(f"{tmp_path}/t/x", b"1")
    store.put_if_absent(f"{tmp_path}/t/y", b"1")
    with store.open_writer(f"{tmp_path}/t/z") as writer:
        writer.write(b"1")
    store.sync()
    assert events == []


def test_failed_background_sync_fails_every_sync_until_the_file_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lancetable.store import durability

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    store, base = LocalStore(), f"{tmp_path}/t"
    with monkeypatch.context() as patched:
        patched.setattr(durability, "sync_file", fail)
        with store.open_writer(f"{base}/data/a") as writer:
            writer.write(b"1")
        for _ in range(2):
            with pytest.raises(StoreError, match="not durable") as caught:
                store.sync(base)
            assert caught.value.path == f"{base}/data/a"
    store.sync(f"{tmp_path}/elsewhere")
    store.delete([f"{base}/data/a"])
    store.sync(base)


@pytest.mark.parametrize("how", ["delete", "delete_prefix"])
def test_failed_sync_of_a_removed_file_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    from lancetable.store import durability

    removed = threading.Event()

    def fail(descriptor: int) -> None:
        removed.wait(10)
        raise OSError(28, "No space left on device")

    store, base = LocalStore(), f"{tmp_path}/t"
    monkeypatch.setattr(durability, "sync_file", fail)
    for name in ("a", "b"):
        with store.open_writer(f"{base}/data/{name}") as writer:
            writer.write(b"1")
    waiting = list(local._QUEUE._pending.values())
    store.delete([f"{base}/data/a", f"{base}/data/b"]) if how == "delete" else store.delete_prefix(base)
    removed.set()
    for future in waiting:
        future.result(10)
    store.sync(base)


def test_delete_prefix_clears_failed_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lancetable.store import durability

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    store, base = LocalStore(), f"{tmp_path}/t"
    with monkeypatch.context() as patched:
        patched.setattr(durability, "sync_file", fail)
        with store.open_writer(f"{base}/data/a") as writer:
            writer.write(b"1")
        with pytest.raises(StoreError, match="not durable"):
            store.sync(base)
    store.delete_prefix(base)
    store.put(f"{base}/data/b", b"2")
    store.sync(base)


@pytest.mark.filterwarnings("ignore:lance is not fork-safe")  # another test may have imported it
def test_forked_copy_of_a_writer_does_not_remove_the_file(tmp_path: Path) -> None:
    writer = LocalStore(fsync=False).open_writer(f"{tmp_path}/x")
    writer.write(b"of the parent")
    child = os.fork()
    if child == 0:
        del writer  # as at a normal exit of the child
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    writer.close()
    assert (tmp_path / "x").read_bytes() == b"of the parent"


def test_pending_syncs_are_bounded(tmp_path: Path) -> None:
    store = LocalStore()
    for i in range(150):
        store.put(f"{tmp_path}/{i}", b"1", durability=Durability.AT_SYNC)
    assert len(local._QUEUE._pending) <= 65
    store.sync()
    assert not local._QUEUE._pending


def _record_syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that records the files and directories that are synced."""
    from lancetable.store import durability

    events: list[str] = []

    def sync_file(descriptor: int) -> None:
        events.append("file " + os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

    monkeypatch.setattr(durability, "sync_file", sync_file)
    monkeypatch.setattr(local, "sync_file", sync_file)
    monkeypatch.setattr(durability, "sync_directory", lambda path: events.append(f"directory {path}"))
    return events


# ------------------------------------------------------------------------------------------------- fork, kill, faults


@pytest.mark.filterwarnings("ignore:lance is not fork-safe")  # another test may have imported it
def test_forked_child_reads_and_writes(tmp_path: Path) -> None:
    store = LocalStore()
    store.put(f"{tmp_path}/x", b"0123456789", durability=Durability.AT_SYNC)
    assert store.read(f"{tmp_path}/x", 0, 1) == b"0"
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_use, args=(store, str(tmp_path)))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert store.read_all(f"{tmp_path}/from child") == b"5"


def _use(store: LocalStore, base: str) -> None:
    data = store.read(f"{base}/x", 5, 6)
    with store.open_writer(f"{base}/from child") as writer:
        writer.write(data)
    store.sync(base)


def test_killed_writer_leaves_only_a_temporary_file(tmp_path: Path) -> None:
    code = (
        "import os, sys; from lancetable.store.local import LocalStore\n"
        "writer = LocalStore().open_writer(sys.argv[1] + '/5.manifest')\n"
        "writer.write(b'x' * 3_000_000); os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, cwd=Path(local.__file__).parents[2])
    assert done.returncode == 9
    (name,) = os.listdir(tmp_path)
    assert name.startswith(".tmp_5.manifest_")
    assert not name.endswith("manifest")


def test_garbage_collected_writer_removes_its_file(tmp_path: Path) -> None:
    writer = LocalStore().open_writer(f"{tmp_path}/x")
    writer.write(b"1")
    del writer
    gc.collect()
    assert os.listdir(tmp_path) == []


def _stream(store: LocalStore, path: str) -> None:
    with store.open_writer(path) as writer:
        writer.write(b"new " * 10)
        writer.write(b"bytes" * 300_000)
    store.sync(os.path.dirname(path))


WRITES = {
    "put": lambda store, path: store.put(path, b"new " * 10 + b"bytes" * 300_000),
    "put_if_absent": lambda store, path: store.put_if_absent(path, b"new " * 10 + b"bytes" * 300_000),
    "open_writer": _stream,
}


@pytest.mark.parametrize("code", [5, 13, 28], ids=["EIO", "EACCES", "ENOSPC"])
@pytest.mark.parametrize("fsync", [True, False], ids=["fsync", "no-fsync"])
@pytest.mark.parametrize("write", WRITES)
def test_write_is_atomic_if_any_call_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str, fsync: bool, code: int
) -> None:
    """The result is a typed error or success, and the whole object or none. No temporary file or descriptor leaks."""
    from lancetable.store import durability

    data = b"new " * 10 + b"bytes" * 300_000
    number, failed = 0, set()
    while True:
        number += 1
        base = f"{tmp_path}/{number}/new"
        path = f"{base}/x"
        faulty = FaultyOs(number, code)
        descriptors = len(os.listdir("/proc/self/fd"))
        queue = durability.SyncQueue()
        error = outcome = None
        with monkeypatch.context() as patched:
            for module in (local, durability):
                patched.setattr(module, "os", faulty)
            patched.setattr(local, "_QUEUE", queue)
            store = LocalStore(fsync=fsync)
            try:
                outcome = WRITES[write](store, path)
            except LanceError as raised:
                error = raised
            with_fault = len(faulty.made) >= number
            if queue._pool is not None:
                queue._pool.shutdown()
        assert len(os.listdir("/proc/self/fd")) == descriptors
        name = faulty.made[number - 1] if with_fault else ""
        failed.add(name)
        names = os.listdir(base) if os.path.isdir(base) else []
        if name == "unlink":
            names = [n for n in names if not n.startswith(".tmp_")]  # it could not be removed
        assert names in ([], ["x"])
        if names:
            assert Path(path).read_bytes() == data
            # Visible, but possibly not durable: an error after a plain write, UNKNOWN after an exclusive create.
            before = faulty.made[: number - 1]
            if error is not None:
                assert fsync and write != "put_if_absent" and "replace" in before
            elif outcome is PutOutcome.UNKNOWN:
                assert fsync and "link" in before
        else:
            assert error is not None
            assert isinstance(error, StoreError)
        if not with_fault:
            assert error is None
            break
    assert {"open", "write", "close"} <= failed
    assert not fsync or {"fdatasync", "fsync"} <= failed


@pytest.mark.parametrize("mmap", [True, False])
def test_read_raises_a_typed_error_if_any_call_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mmap: bool
) -> None:
    path = f"{tmp_path}/x"
    Path(path).write_bytes(b"0123456789" * 10_000)
    reads = {
        "read": lambda store: store.read(path, 5, 8) == b"567",
        "read_many": lambda store: store.read_many(path, [ByteRange(5, 8)]) == [b"567"],
        "read_all": lambda store: len(store.read_all(path)) == 100_000,
        "read_tail": lambda store: store.read_tail(path, None, 3)[0] == b"789",
        "find": lambda store: store.find(path) == 100_000,
        "list": lambda store: len(store.list_names(str(tmp_path), detail=True)) == 1,
        "list_recursive": lambda store: len(list(store.list_recursive(str(tmp_path)))) == 1,
        "delete": lambda store: store.delete([f"{path}.absent"]) is None,
    }
    for read in reads.values():
        number = 0
        while True:
            number += 1
            faulty = FaultyOs(number, 5)
            descriptors = len(os.listdir("/proc/self/fd"))
            with monkeypatch.context() as patched:
                for module in (local, memory_maps):
                    patched.setattr(module, "os", faulty)
                patched.setattr(local, "_MAPS", MapCache())
                try:
                    assert read(LocalStore(mmap=mmap))
                except StoreError:
                    assert len(faulty.made) >= number
            assert len(os.listdir("/proc/self/fd")) == descriptors
            if len(faulty.made) < number:
                break
        assert number > 1
