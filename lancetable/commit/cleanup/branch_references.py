"""Versions that branches need: a branch needs its parent version if any version of the branch uses its files."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from lancetable.commit.cleanup.referenced_files import detached_versions, referenced_paths
from lancetable.errors import LanceError, StoreError
from lancetable.format.refs import BranchContents
from lancetable.table import refs
from lancetable.table.manifest_files import identity_of
from lancetable.table.version import TableVersion, base_of_branch, checkout, open_location


@dataclass
class CleanupReferencedBranch:
    """A branch that was created, directly or through other branches, from a version of the current branch.

    The version `referenced_version` is kept while the branch uses its files.
    """

    name: str
    referenced_version: int
    cleanup_candidate: bool = False


def branches_from(version: TableVersion) -> list[CleanupReferencedBranch]:
    """Return the branches created from the branch of `version`, directly or indirectly, descendants first.

    Branches are found by the names of their parents and by lineage, because the ref of a parent may have been deleted.
    A branch with neither counts as created from a removed version.
    """
    contents = refs.BRANCHES.list(version.store, version.main_base)
    referenced: dict[str, int] = {}
    while True:
        children = {}
        for name, branch in contents.items():
            parent = branch.parent_branch
            if name not in referenced and parent == version.branch:
                children[name] = branch.parent_version
            elif name not in referenced and parent is not None and parent in referenced:
                children[name] = referenced[parent]
        if not children:
            break
        referenced = {**children, **referenced}
    own = contents.get(version.branch) if version.branch is not None else None
    lineage = own.lineage if own is not None else ()
    for name, branch in contents.items():
        if (version.branch is None or own is not None) and branch.lineage[: len(lineage)] == lineage != branch.lineage:
            referenced[name] = branch.lineage[len(lineage)][0]
        elif not branch.lineage and branch.parent_branch not in (None, "main", *contents):
            referenced.setdefault(name, 0)
    return [CleanupReferencedBranch(name, number) for name, number in referenced.items()]


def versions_needed_by(
    version: TableVersion,
    branches: Iterable[CleanupReferencedBranch],
    existing: Container[int],
    removed: Container[int],
    warnings: list[str],
) -> tuple[dict[int, set[str]], bool]:
    """Return the versions that branches need.

    A branch needs no version if it uses only its own files. A branch that cannot be read counts as needing its parent
    version, and a warning is added.

    Parameters
    ----------
    version
        The current branch.
    branches
        Branches created from it.
    existing
        Existing versions to check.
    removed
        Removed versions to check.
    warnings
        Receives a message for each branch that cannot be read.

    Returns
    -------
    dict
        For each needed version, files below the root of `version` that branches use: all of them for versions in
        `removed`, otherwise only examples.
    bool
        False if a branch of a version in `removed` cannot be read, so that its files are unknown.

    Raises
    ------
    StoreError
        If the store fails.
    """
    needs: dict[int, set[str]] = {}
    is_known = True
    relevant = [
        branch for branch in branches if branch.referenced_version in existing or branch.referenced_version in removed
    ]
    if not relevant:
        return needs, is_known
    ancestor = _Ancestor.of(version)
    for branch in relevant:
        number = branch.referenced_version
        try:
            named = ancestor.referenced_paths(checkout(version, (branch.name, None)))
            paths = set(named if number in removed else islice(named, 1))
        except StoreError:
            raise
        except LanceError as error:
            consequence = ", so only manifests are removed and no other files" if number in removed else ""
            warnings.append(
                f"branch {branch.name}, created from version {number}, cannot be read{consequence}: {error}"
            )
            needs.setdefault(number, set())
            is_known = is_known and number not in removed
            continue
        if paths:
            needs.setdefault(number, set()).update(paths)
    return needs, is_known


@dataclass(frozen=True, slots=True)
class _Ancestor:
    """Parent of branches, with the roots of other branches and the base paths that certainly point elsewhere."""

    version: TableVersion
    other_roots: frozenset[str]
    foreign_paths: frozenset[str]
    branches: Mapping[str, BranchContents]

    @classmethod
    def of(cls, version: TableVersion) -> _Ancestor:
        branches = refs.BRANCHES.list(version.store, version.main_base)
        other_roots = frozenset(base_of_branch(version, name) for name in (None, *branches)) - {version.base}
        root = version.store.uri(version.base).rstrip("/")
        paths = {base_path.path for base_path in version.manifest.base_paths.values()}
        foreign_paths = frozenset(path for path in paths if path.rstrip("/") not in (root, f"file://{root}"))
        return cls(version, other_roots, foreign_paths, branches)

    def referenced_paths(self, branch: TableVersion) -> Iterator[str]:
        """Yield the files below this root that any version of a branch may use.

        Base paths of a table that was moved point to its old location. A base path therefore counts as this root unless
        it points to another branch or to a base path of the parent.
        """
        contents = self.branches.get(branch.branch or "")
        lineage = contents.lineage if contents is not None else ()
        for location in branch.handler.history(branch.store, branch.base):
            # Every cleanup reads all versions of a branch whose parent was removed, and most of them never change. The
            # lineage is part of the key, because another branch of the same name may have equal names and sizes.
            key = (
                "files of an ancestor",
                branch.store.key(location.path),
                identity_of(branch.store, location),
                lineage,
                self.other_roots,
                self.foreign_paths,
            )
            files: frozenset[str] | None = branch.cache.get(key) if lineage else None
            if files is None:
                files = frozenset(self._paths_of_version(open_location(branch, location)))
                if lineage:
                    branch.cache.put(key, files, 200 * (1 + len(files)))
            yield from files
        for detached in detached_versions(branch):
            yield from self._paths_of_version(detached)

    def _paths_of_version(self, version: TableVersion) -> Iterator[str]:
        foreign = {
            base_id
            for base_id, base_path in version.manifest.base_paths.items()
            if base_path.path in self.foreign_paths
            or any(version.is_base_at(base_id, root) for root in self.other_roots)
        }
        yield from (
            path for base_id, path in referenced_paths(version) if base_id is not None and base_id not in foreign
        )
