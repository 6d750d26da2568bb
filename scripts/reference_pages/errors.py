"""Page of the error classes with their remedies."""

from __future__ import annotations

import inspect

from lancetable import errors
from scripts.reference_pages.markdown import code, table

REMEDIES = {
    "LanceError": "Catch it to handle every error that the library raises on purpose.",
    "InvalidInputError": "Correct the call; the message names the argument and the accepted values.",
    "InvalidSqlError": "Correct the SQL; the message contains the cause.",
    "ColumnNotFoundError": "Correct the name; the message lists the columns.",
    "SchemaMismatchError": 'Cast the data, or pass `schema_mode="merge"` to add its columns to the table.',
    "InvalidSchemaError": "Rename the columns: no duplicates, no dots, no reserved names.",
    "InvalidOperationError": "Read the message: it contains the condition and usually another method to call.",
    "OutOfRangeError": "Compare the number with `count_rows()` or with the documented bounds.",
    "InvalidRefError": "Choose a name of letters, digits, `.`, `_` and `-`; branches may also contain `/`.",
    "NotFoundError": "Check the address in `path`.",
    "DatasetNotFoundError": "Check the address and the credentials. `write_dataset` creates a table.",
    "VersionNotFoundError": "List the versions with `ds.versions()`. Tag versions that a cleanup must keep.",
    "RefNotFoundError": "List the names with `ds.tags.list()` and `ds.branches.list()`.",
    "IndexNotFoundError": "List the names with `ds.describe_indices()`.",
    "AlreadyExistsError": 'Choose another name, or open the existing object. For tables, pass `mode="append"` or '
    '`mode="overwrite"`.',
    "IndexExistsError": "Choose another `name`, or pass `replace=True`.",
    "CommitConflictError": "Open the newest version, look at the other change (`other_operation`), and decide. See "
    "[Many conflicts](../runbooks/conflicts.md).",
    "RetryableCommitConflictError": "Run the same operation again on the newest version.",
    "CommitStateUnknownError": "Search `transaction_uuid` in `ds.get_transactions()` of the newest versions before a "
    "retry. Delete no file.",
    "CleanupError": "Delete tags that are not needed, or pass `error_if_tagged_old_versions=False` to keep them.",
    "CorruptFileError": "Run `lancetable fsck`. See [A damaged table](../runbooks/damaged-table.md).",
    "LimitError": "For a table that you trust, open it without `untrusted`. See "
    "[Untrusted tables](../how-to/untrusted-tables.md).",
    "UntrustedPathError": "Do not open the table, or open it without `untrusted` if you trust it.",
    "MissingPackageError": "Install the package; the message contains the command.",
    "UnsupportedFeatureError": "Read the message: it names the feature and, if there is one, another way. See "
    "[Compatibility](compatibility.md).",
    "UnsupportedTypeError": "Choose another kind of index or cast the column.",
    "StoreError": "Check the storage; the cause is chained, and `errno` is the number of the system's error. See "
    "[A full disk](../runbooks/full-disk.md).",
}

_INTRODUCTION = """# Errors

Generated from `lancetable.errors`. Errors are grouped by how a caller can react. Every class also has the built-in
bases that an `except` clause written for pylance expects. A wrong Python type raises a plain `TypeError`.

```text
{tree}
```
"""


def classes() -> list[type[errors.LanceError]]:
    """Return the public error classes in the order of their definition."""
    found = [each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, errors.LanceError)]
    assert {each.__name__ for each in found} == set(errors.__all__)
    return found


def page() -> str:
    """Return the page."""
    lines = (errors.__doc__ or "").splitlines()
    tree = "\n".join(line[4:] for line in lines if line.startswith("    "))
    parts = [_INTRODUCTION.format(tree=tree)]
    rows = []
    for each in classes():
        meaning = " ".join((each.__doc__ or "").split())
        builtin = [base.__name__ for base in each.__mro__[1:] if base.__module__ == "builtins"]
        rows.append([f"`{each.__name__}`", meaning, REMEDIES[each.__name__], code(builtin[:-3] or builtin[:1])])
    parts.append(table(["class", "meaning", "what to do", "also a"], rows))
    return "\n".join(parts)
