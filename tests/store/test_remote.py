"""RemoteStore: methods that a client must implement."""

from __future__ import annotations

from lancetable.store.remote import RemoteStore


def test_methods_without_a_default_are_abstract() -> None:
    assert RemoteStore.__abstractmethods__ == {"uri", "find", "_fetch", "_read_head", "_redact"}
