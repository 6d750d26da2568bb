"""File and directory names of a table.

    R/_versions/...                                              see manifest_naming.py
    R/_transactions/{read version}-{uuid}.txn
    R/data/{name}.lance
    R/_deletions/{fragment}-{read version}-{id}.{arrow|bin}
    R/_indices/{uuid}/...
    R/_quarantine/{manifest name}-{UTC time}                     a damaged manifest, moved by a repair
    R/_refs/tags/{tag}.json
    R/_refs/branches/{branch, / as %2F}.json
    R/tree/{branch}/...                                          root directory of a branch

R is a "/"-separated path inside a store. Names that are read from a file are untrusted: `check_relative` validates
them before they are joined to a directory.
"""

from __future__ import annotations

import uuid
from typing import Final

from lancetable.errors import CorruptFileError

VERSIONS_DIR: Final = "_versions"
TRANSACTIONS_DIR: Final = "_transactions"
DATA_DIR: Final = "data"
DELETIONS_DIR: Final = "_deletions"
INDICES_DIR: Final = "_indices"
TAGS_DIR: Final = "_refs/tags"
BRANCHES_DIR: Final = "_refs/branches"
TREE_DIR: Final = "tree"
MANAGED_BLOBS_DIR: Final = "_blobs"
QUARANTINE_DIR: Final = "_quarantine"
BRANCH_CONTENTS: Final = (VERSIONS_DIR, TRANSACTIONS_DIR, DELETIONS_DIR, INDICES_DIR, DATA_DIR, QUARANTINE_DIR)

MAX_NAME_BYTES: Final = 1024  # the limit of object stores for a whole key

_MAX_DIGITS: Final = 20

# ------------------------------------------------------------------------------- transactions, data files, deletions


def transaction_name(read_version: int, transaction_uuid: str) -> str:
    """Return the file name of a transaction below `_transactions`."""
    return f"{read_version}-{transaction_uuid}.txn"


def transaction_path(base: str, name: str, found_in: str | None = None) -> str:
    """Return the path of a transaction file. Raises CorruptFileError if `name`, read from `found_in`, is unsafe."""
    return join(base, f"{TRANSACTIONS_DIR}/{check_relative(name, found_in)}")


def parse_transaction_name(name: str) -> tuple[int, str] | None:
    """Parse a file name below `_transactions` into (read version, uuid); return None if it is not a transaction."""
    stem, dot, suffix = name.rpartition(".")
    if not dot or suffix != "txn":
        return None
    number, dash, transaction_uuid = stem.partition("-")
    read_version = parse_decimal(number)
    return None if read_version is None or not dash or not transaction_uuid else (read_version, transaction_uuid)


def new_data_file_name() -> str:
    """Return a new name below `data`: a random uuid, with its first three bytes in binary digits.

    The binary digits distribute names evenly over the key ranges of an object store.
    """
    raw = uuid.uuid4().bytes
    return f"{int.from_bytes(raw[:3], 'big'):024b}{raw[3:].hex()}.lance"


def data_path(base: str, name: str) -> str:
    """Return the path of a data file.

    `name` is relative to the data directory and may be from a manifest. Raises CorruptFileError if it is unsafe.
    """
    return join(base, f"{DATA_DIR}/{check_relative(name)}")


def deletion_name(fragment_id: int, read_version: int, deletion_id: int, suffix: str) -> str:
    """Return the file name of a deletion file below `_deletions`; `suffix` is "arrow" or "bin"."""
    return f"{fragment_id}-{read_version}-{deletion_id}.{suffix}"


def deletion_path(base: str, fragment_id: int, read_version: int, deletion_id: int, suffix: str) -> str:
    """Return the path of a deletion file; `suffix` is "arrow" or "bin"."""
    return join(base, f"{DELETIONS_DIR}/{deletion_name(fragment_id, read_version, deletion_id, suffix)}")


def parse_deletion_name(name: str) -> tuple[int, int, int, str] | None:
    """Parse a file name below `_deletions` into (fragment id, read version, id, suffix).

    Returns None if it is not a deletion file.
    """
    stem, dot, suffix = name.rpartition(".")
    parts = stem.split("-")
    if not dot or suffix not in ("arrow", "bin") or len(parts) != 3:
        return None
    numbers = [parse_decimal(part) for part in parts]
    fragment_id, read_version, deletion_id = numbers
    if fragment_id is None or read_version is None or deletion_id is None:
        return None
    return fragment_id, read_version, deletion_id, suffix


# ------------------------------------------------------------------------------------------------------------- refs


def tag_path(base: str, tag: str) -> str:
    """Return the path of a tag's file; `base` is the root of the main branch.

    Raises CorruptFileError if `tag` is unsafe.
    """
    return join(base, f"{TAGS_DIR}/{check_relative(tag)}.json")


def branch_path(base: str, branch: str) -> str:
    """Return the path of a branch's file; `base` is the root of the main branch.

    Raises CorruptFileError if `branch` is unsafe.
    """
    return join(base, f"{BRANCHES_DIR}/{check_relative(branch).replace('/', '%2F')}.json")


def branch_root(base: str, branch: str) -> str:
    """Return the root directory of a branch, which has the layout of a table.

    Raises CorruptFileError if it is unsafe.
    """
    return join(base, f"{TREE_DIR}/{check_relative(branch)}")


# ---------------------------------------------------------------------------------------------------------- joining


def join(base: str, relative: str) -> str:
    """Join `base` and a path below it; an empty base is the root of the store."""
    if not base:
        return relative
    return f"{base}{relative}" if base.endswith("/") else f"{base}/{relative}"


def check_relative(path: str, found_in: str | None = None) -> str:
    """Return `path` if it cannot leave the directory to which it is joined; otherwise raise CorruptFileError.

    `found_in` is the file that contains the path, for error messages. Escapes such as `%2e` are allowed, because this
    library never decodes them.

    Raises
    ------
    CorruptFileError
        For absolute paths, `..` and `.`, backslashes, control characters, schemes and drive letters, empty segments,
        and names that exceed the limits of stores.
    """
    problem = _find_problem(path)
    if problem is None:
        return path
    shown = ascii(path if len(path) <= 100 else path[:100] + "...")
    raise CorruptFileError(f"unsafe path {shown}: it {problem}", path=found_in)


def _find_problem(path: str) -> str | None:
    if not path:
        return "is empty"
    # Fast path for ordinary names.
    if path.isascii() and path.replace(".", "").replace("-", "").replace("_", "").isalnum() and len(path) < 200:
        return "is '.' or '..'" if path in (".", "..") else None
    if len(path.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        return "is too long"
    if not path.isprintable():
        return "has control characters"
    if "\\" in path:
        return "has a backslash"
    segments = path.split("/")
    if ".." in segments or "." in segments:
        return "contains a '.' or '..' segment"
    if "" in segments:
        return "is absolute or has an empty segment"
    if ":" in segments[0]:
        return "has a scheme or a drive letter"
    return None


def parse_decimal(string: str) -> int | None:
    """Parse an unsigned 64-bit number in plain decimal digits; return None for any other string."""
    if not string or len(string) > _MAX_DIGITS or not (string.isascii() and string.isdecimal()):
        return None
    number = int(string)
    return number if number < 1 << 64 else None
