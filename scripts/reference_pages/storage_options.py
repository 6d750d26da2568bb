"""Page of the storage options, from the tables of names."""

from __future__ import annotations

from lancetable.store.clouds import options
from lancetable.store.schemes import Cloud
from scripts.reference_pages.markdown import code, table

OWN = {
    "fsync": "local: `false` disables the syncs of commits. Default: `LANCETABLE_FSYNC`, else `true`.",
    "mmap": "local: `false` reads without memory maps. Default: `true`, on network file systems `false`.",
    "untrusted": "`true` refuses paths outside of the table and applies strict limits.",
    "unsafe_single_writer": "`true` permits commits on a store without conditional creates. Only with one writer.",
    "client": "clouds: `obstore`, the only value. For fsspec, pass a pair of a file system object and a path.",
    "probe": "clouds: `false` skips the test of conditional creates at an unknown endpoint.",
    "manifest_store": "`sqlite:///path/to/file` decides commits in an SQLite file on this host.",
    "dynamodb_endpoint": "`s3+ddb://`: address of DynamoDB. Default: that of AWS, or `DYNAMODB_ENDPOINT`.",
    "download_retry_count": "accepted for pylance, without effect",
    "expires_at_millis": "accepted for pylance, without effect",
    "refresh_offset_millis": "accepted for pylance, without effect",
    "lance_io_threads": "accepted for pylance, without effect",
}
_TITLES: dict[Cloud, str] = {"s3": "S3 and compatible servers", "gcs": "Google Cloud Storage", "azure": "Azure"}

_INTRODUCTION = """# Storage options

Generated from the tables of names. `storage_options` is a dictionary of strings, passed to `dataset`, `write_dataset`
and the other functions that open a table; `-o key=value` on the command line; `storage.<key>` in Spark.

- Names are those of pylance and of s3fs, gcsfs and adlfs. Case does not matter.
- An unknown name that resembles a known one is an error. Any other unknown name is logged and has no effect.
- Missing options are read from the environment when a client is created. If a credential is passed as an option, no
  credential is read from the environment.
- Messages and representations contain no secrets; a pickled dataset does.

## All stores

{own}

The names of the clouds are accepted, and have no effect, on other stores.

## HTTP client of the clouds

{client}

Durations are numbers with a unit, such as `30s` or `500ms`. `request_timeout` is another name of `timeout`.
"""


def page() -> str:
    """Return the page."""
    own = table(["option", ""], [[f"`{name}`", OWN[name]] for name in sorted(options.OWN_OPTIONS)])
    client = code(sorted(options.CLIENT_NAMES | options.RETRY_NAMES))
    parts = [_INTRODUCTION.format(own=own, client=client)]
    for cloud, title in _TITLES.items():
        others: dict[str, list[str]] = {}
        for other, name in options.SYNONYMS[cloud].items():
            others.setdefault(name, []).append(other)
        prefixes = code(options.PREFIXES[cloud])
        rows = [[f"`{name}`", code(others.get(name, []))] for name in sorted(options.NAMES[cloud])]
        parts.append(f"## {title}\n\nEach name may have one of the prefixes {prefixes}.\n")
        parts.append(table(["option", "other names"], rows) + "\n")
        parts.append(f"Environment, in order of precedence: {code(options.ENVIRONMENT[cloud])}.\n")
    return "\n".join(parts)
