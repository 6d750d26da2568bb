"""Ref files: the JSON files of tags and branches below `_refs` of the main root."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from lancetable.errors import CorruptFileError, InvalidRefError, NotFoundError, RefNotFoundError
from lancetable.format.paths import BRANCHES_DIR, TAGS_DIR, branch_path, join, tag_path
from lancetable.format.refs import BranchContents, TagContents, check_branch_name, check_tag_name
from lancetable.store.base import PutOutcome

if TYPE_CHECKING:
    from lancetable.store.base import ObjectStore

_SUFFIX = ".json"
_MAX_REF_FILE_BYTES = 1024 * 1024

Contents = TypeVar("Contents", TagContents, BranchContents)


@dataclass(frozen=True, slots=True)
class RefFiles(Generic[Contents]):
    """Files of one kind of ref. Methods take the root of the main branch as `main_base`."""

    kind: str
    directory: str
    check_name: Callable[[str], str]
    path_below: Callable[[str, str], str]
    parse: Callable[[bytes, str], Contents]

    def path(self, main_base: str, name: str) -> str:
        """Return the path of a ref file. Raises InvalidRefError for an invalid name."""
        return self.path_below(main_base, self.check_name(name))

    def find(self, store: ObjectStore, main_base: str, name: str) -> Contents | None:
        """Return a ref, or None if it does not exist.

        Raises InvalidRefError for an invalid name, and CorruptFileError for a damaged file.
        """
        path = self.path(main_base, name)
        size = store.find(path)
        if size is None:
            return None
        if size > _MAX_REF_FILE_BYTES:
            raise CorruptFileError("ref file too large", f"at most {_MAX_REF_FILE_BYTES}", size, path=path)
        # Refs are replaced in place, so the size may have changed since it was looked up.
        return self.parse(bytes(store.read_all(path)), path)

    def read(self, store: ObjectStore, main_base: str, name: str) -> Contents:
        """Return a ref. Raises RefNotFoundError if it does not exist; other errors are those of `find`."""
        contents = self.find(store, main_base, name)
        if contents is None:
            raise self.not_found(name)
        return contents

    def check_exists(self, store: ObjectStore, main_base: str, name: str) -> None:
        """Raise RefNotFoundError if a ref does not exist, and InvalidRefError if its name is invalid."""
        if store.find(self.path(main_base, name)) is None:
            raise self.not_found(name)

    def write(self, store: ObjectStore, main_base: str, name: str, contents: Contents) -> None:
        """Write or replace a ref. Not transactional: the last of several concurrent writers wins."""
        store.put(self.path(main_base, name), contents.to_json())

    def create(self, store: ObjectStore, main_base: str, name: str, contents: Contents) -> bool:
        """Write a ref unless it exists. Returns True if it was written.

        At most one of several concurrent writers succeeds if the store supports exclusive creation.
        """
        path, data = self.path(main_base, name), contents.to_json()
        if store.capabilities.conditional_create != "native":
            if store.find(path) is not None:
                return False
            store.put(path, data)
            return True
        outcome = store.put_if_absent(path, data)
        if outcome is PutOutcome.UNKNOWN:
            return bytes(store.read_all(path)) == data
        return outcome is PutOutcome.WON

    def delete(self, store: ObjectStore, main_base: str, name: str) -> None:
        """Remove a ref. A missing ref is not an error."""
        store.delete([self.path(main_base, name)])

    def names(self, store: ObjectStore, main_base: str) -> Sequence[str]:
        """Return the names that the files stand for, sorted. They may be invalid. Raises StoreError."""
        files = (meta.name for meta in store.list_names(join(main_base, self.directory)))
        return sorted(file.removesuffix(_SUFFIX).replace("%2F", "/") for file in files if file.endswith(_SUFFIX))

    def list(self, store: ObjectStore, main_base: str) -> dict[str, Contents]:
        """Return all refs by name, sorted. Other files and refs that are deleted concurrently are skipped."""
        refs = {}
        for name in self.names(store, main_base):
            try:
                contents = self.find(store, main_base, name)
            except (InvalidRefError, NotFoundError):
                continue
            if contents is not None:
                refs[name] = contents
        return refs

    def not_found(self, name: str) -> RefNotFoundError:
        """Return the error for a ref that does not exist; the caller raises it."""
        return RefNotFoundError(f"Ref not found error: {self.kind} {name} does not exist", ref=name)


TAGS: Final = RefFiles("tag", TAGS_DIR, check_tag_name, tag_path, TagContents.from_json)
BRANCHES: Final = RefFiles("branch", BRANCHES_DIR, check_branch_name, branch_path, BranchContents.from_json)
