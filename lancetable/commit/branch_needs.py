"""Which versions a branch needs: those that it springs from, as long as any of its versions names a file of them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from lancetable.commit.named_files import detached_versions, named_by
from lancetable.errors import LanceError, StoreError
from lancetable.format.refs import BranchContents
from lancetable.table import refs
from lancetable.table.manifests import identity_of
from lancetable.table.version import TableVersion, base_of_branch, checkout, open_location

__all__ = ["ReferencedBranch", "branches_from", "needs_of"]


@dataclass(frozen=True, slots=True)
class ReferencedBranch:
    """A branch, and the version of this one that it, or the branch it came from, springs from."""

    name: str
    referenced_version: int
    cleanup_candidate: bool = False


def branches_from(version: TableVersion) -> list[ReferencedBranch]:
    """The branches that spring from this one, and those that spring from them, the last ones first.

    By the names of their parents, and by lineage: the ref of a parent may be missing where somebody deletes it. What
    has neither counts as sprung from a version that is gone.
    """
    contents = refs.list_branches(version.store, version.main_base)
    found: dict[str, int] = {}
    while True:
        some = {}
        for name, each in contents.items():
            parent = each.parent_branch
            if name not in found and parent == version.branch:
                some[name] = each.parent_version
            elif name not in found and parent is not None and parent in found:
                some[name] = found[parent]
        if not some:
            break
        found = {**some, **found}
    own = contents.get(version.branch) if version.branch is not None else None
    lineage = own.lineage if own is not None else ()
    for name, each in contents.items():
        if (version.branch is None or own is not None) and each.lineage[: len(lineage)] == lineage != each.lineage:
            found[name] = each.lineage[len(lineage)][0]
        elif not each.lineage and each.parent_branch not in (None, "main", *contents):
            found.setdefault(name, 0)
    return [ReferencedBranch(name, number) for name, number in found.items()]


def needs_of(
    version: TableVersion,
    branches: Iterable[ReferencedBranch],
    numbers: Container[int],
    gone: Container[int],
    warnings: list[str],
) -> tuple[dict[int, set[str]], bool]:
    """Which of the versions `numbers` and `gone` branches need; of the latter, all files that they name of `version`,
    and whether these are known.

    A branch whose files are all its own by now needs none. One whose versions cannot be read is taken to need the
    version that it springs from, or if that is gone, files that nobody knows; `warnings` say so. Raises StoreError.
    """
    needs: dict[int, set[str]] = {}
    is_known = True
    concerned = [each for each in branches if each.referenced_version in numbers or each.referenced_version in gone]
    if not concerned:
        return needs, is_known
    ancestor = _Ancestor.of(version)
    for branch in concerned:
        number = branch.referenced_version
        try:
            named = ancestor.named_by(checkout(version, (branch.name, None)))
            paths = set(named if number in gone else islice(named, 1))
        except StoreError:
            raise
        except LanceError as error:
            spared = "; so only versions are removed, and no files" if number in gone else ""
            warnings.append(
                f"branch {branch.name}, which springs from version {number}, cannot be read{spared}: {error}"
            )
            needs.setdefault(number, set())
            is_known = is_known and number not in gone
            continue
        if paths:
            needs.setdefault(number, set()).update(paths)
    return needs, is_known


@dataclass(frozen=True, slots=True)
class _Ancestor:
    """A version that branches spring from, and the roots and base paths that surely lead somewhere else."""

    version: TableVersion
    others: frozenset[str]
    elsewhere: frozenset[str]
    branches: Mapping[str, BranchContents]

    @classmethod
    def of(cls, version: TableVersion) -> _Ancestor:
        branches = refs.list_branches(version.store, version.main_base)
        others = frozenset(base_of_branch(version, name) for name in (None, *branches)) - {version.base}
        root = version.store.uri(version.base).rstrip("/")
        paths = {each.path for each in version.manifest.base_paths.values()}
        elsewhere = frozenset(path for path in paths if path.rstrip("/") not in (root, f"file://{root}"))
        return cls(version, others, elsewhere, branches)

    def named_by(self, branch: TableVersion) -> Iterator[str]:
        """The files below its root that any version of a branch may name.

        The base paths of a table that was moved lead to its old place. So a path that is not known to lead somewhere
        else, to another branch or to a base that the ancestor has itself, counts as one that leads here.
        """
        contents = self.branches.get(branch.branch or "")
        lineage = contents.lineage if contents is not None else ()
        for location in branch.handler.history(branch.store, branch.base):
            # Every cleanup asks all versions of a branch whose parent is gone, and most of them never change. Another
            # branch of the same name may have manifests of the same names and sizes.
            key = (
                "named of an ancestor",
                branch.store.key(location.path),
                identity_of(branch.store, location),
                lineage,
                self.others,
                self.elsewhere,
            )
            found: frozenset[str] | None = branch.cache.get(key) if lineage else None
            if found is None:
                found = frozenset(self._named_by_one(open_location(branch, location)))
                if lineage:
                    branch.cache.put(key, found, 200 * (1 + len(found)))
            yield from found
        for each in detached_versions(branch):
            yield from self._named_by_one(each)

    def _named_by_one(self, each: TableVersion) -> Iterator[str]:
        foreign = {
            base_id
            for base_id, base_path in each.manifest.base_paths.items()
            if base_path.path in self.elsewhere or any(each.is_base_at(base_id, other) for other in self.others)
        }
        yield from (path for base_id, path in named_by(each) if base_id is not None and base_id not in foreign)
