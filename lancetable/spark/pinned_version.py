"""Pins: small values that identify one version of a table, so that all processes of a job open the same version."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from lancetable.argument_validation import parse_asof
from lancetable.errors import InvalidInputError, VersionNotFoundError
from lancetable.spark.options import SourceOptions
from lancetable.table.version import TableVersion, open_version, uri_of_branch

_OPEN_VERSIONS = 8


@dataclass(frozen=True)
class PinnedVersion:
    """Identity of one version of a table, independent of later commits and of moved tags.

    `commit_id` distinguishes it from a version of the same number in a table that was created again at its address.
    """

    uri: str
    branch: str | None
    version: int
    storage_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    commit_id: str = ""

    @classmethod
    def of(cls, version: TableVersion) -> PinnedVersion:
        """Return the pin of an open version."""
        options = tuple(sorted((version.storage_options or {}).items()))
        # A branch of an untrusted table is opened through the table, to which its files are confined.
        roots = version.store.capabilities.roots
        uri = uri_of_branch(version, None) if roots and version.base not in roots else version.uri
        return cls(uri, version.branch, version.version, options, commit_id_of(version))

    @lru_cache(_OPEN_VERSIONS)  # noqa: B019  # equal pins share an entry, and a pin holds nothing but its values
    def open(self) -> TableVersion:
        """Open the table at this version. Each process caches the last few versions with their parsed metadata.

        Raises
        ------
        VersionNotFoundError
            If the version does not exist, or if the table was removed and created again.
        """
        ref = self.version if self.branch is None else (self.branch, self.version)
        version = open_version(self.uri, ref, storage_options=dict(self.storage_options) or None)
        if self.commit_id and commit_id_of(version) != self.commit_id:
            raise VersionNotFoundError(
                f"version {self.version} of {self.uri} is not the planned version, because the table was removed"
                " and created again; start the job again",
                version=self.version,
            )
        return version


def commit_id_of(version: TableVersion) -> str:
    """Return the identity of a commit: the name of its transaction file, or else its time."""
    return version.manifest.transaction_file or str(version.manifest.timestamp_ns)


def pin_of(options: SourceOptions) -> PinnedVersion:
    """Return the pin of the version that the options select, by default the newest one.

    Raises
    ------
    DatasetNotFoundError, VersionNotFoundError, RefNotFoundError
        If the table, the version, the branch or the tag does not exist.
    InvalidInputError
        If both a tag and a branch are given.
    """
    storage_options = options.storage_options or None
    uri = options.uri
    if options.branch is not None:
        if options.tag is not None:
            raise InvalidInputError(
                f"tag {options.tag!r} and branch {options.branch!r} exclude each other, because a tag belongs to one"
                " branch; pass one of them"
            )
        version = open_version(uri, (options.branch, options.version), storage_options=storage_options)
        if options.timestamp_as_of is None:
            return PinnedVersion.of(version)
        uri = uri_of_branch(version, options.branch)
    reference = options.tag if options.version is None else options.version
    asof = None if reference is not None or options.timestamp_as_of is None else parse_asof(options.timestamp_as_of)
    return PinnedVersion.of(open_version(uri, reference, asof=asof, storage_options=storage_options))
