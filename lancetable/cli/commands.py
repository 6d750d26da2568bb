"""Commands of the command line."""

from __future__ import annotations

import sys
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

import click

import lancetable
from lancetable import checks
from lancetable.cli import compression, inspect
from lancetable.cli.output import Output
from lancetable.commit.cleanup.durations import parse_duration
from lancetable.dataset import LanceDataset
from lancetable.ops.maintain.commit_probe import probe as run_probe
from lancetable.ops.maintain.migrate import rename_manifests
from lancetable.optimize import Compaction
from lancetable.store.open import with_untrusted

VERSION_COLUMNS = ("version", "committed", "operation", "rows", "fragments", "data_files", "data_bytes", "tags")


def parse_options(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    """Return `key=value` pairs as a dict, or None if there are none. Raises click.BadParameter."""
    pairs = [value.partition("=") for value in values]
    for key, separator, _ in pairs:
        if not key or not separator:
            raise click.BadParameter("expected key=value")
    return {key: value for key, _, value in pairs} or None


def select_output(context: click.Context, parameter: click.Parameter, value: bool) -> Output:
    """Return the output in the selected form."""
    return Output(value)


def parse_version(context: click.Context, parameter: click.Parameter, value: str | None) -> int | str | None:
    """Return a number as a version, and any other string as a tag."""
    return int(value) if value is not None and value.isdecimal() else value


version_option = click.option(
    "--version", "-v", "version", callback=parse_version, help="Version number or tag; default: the newest."
)


class UriCommand(click.Command):
    """A command that is called with a URI, the options of the store, and the output."""

    def __init__(self, *, params: list[click.Parameter], **kwargs: Any) -> None:
        common: list[click.Parameter] = [
            click.Argument(["uri"]),
            click.Option(
                ["--option", "-o", "storage_options"],
                multiple=True,
                callback=parse_options,
                help="Storage option as key=value; may be repeated.",
            ),
            click.Option(["--untrusted"], is_flag=True, help="Refuse paths out of the table; apply strict limits."),
            click.Option(["--json", "output"], is_flag=True, callback=select_output, help="Print JSON."),
        ]
        super().__init__(params=[*common, *params], **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Pass --untrusted on as a storage option."""
        rest = super().parse_args(ctx, args)
        ctx.params["storage_options"] = with_untrusted(ctx.params["storage_options"], ctx.params.pop("untrusted"))
        return rest


class TableCommand(UriCommand):
    """A command that is called with the open dataset and the output."""

    def invoke(self, ctx: click.Context) -> Any:
        """Open the dataset and call the command."""
        given = ctx.params
        given["dataset"] = LanceDataset(
            given.pop("uri"), given.pop("version", None), storage_options=given.pop("storage_options")
        )
        return super().invoke(ctx)


@click.group()
@click.version_option(lancetable.__version__, prog_name="lancetable")
def cli() -> None:
    """Inspect and maintain Lance tables and files, at a path or any URI."""


@cli.command(cls=TableCommand)
@version_option
def info(dataset: LanceDataset, output: Output) -> None:
    """Show the properties of a table: version, rows, files, format, tags."""
    summary = dataset.get_version()
    counts = {name: int(value) for name, value in summary["metadata"].items()}
    manifest = dataset.table_version.manifest
    writer = manifest.writer_version
    output.facts(
        {
            "uri": dataset.uri,
            "version": dataset.version,
            "latest_version": dataset.latest_version,
            "committed": summary["timestamp"],
            "written_by": None if writer is None else f"{writer.library} {writer.version}",
            "rows": counts["total_rows"],
            "deleted_rows": counts["total_deletion_file_rows"],
            "fragments": counts["total_fragments"],
            "data_files": counts["total_data_files"],
            "data_bytes": counts["total_files_size"],
            "data_format": dataset.data_storage_version,
            "stable_row_ids": dataset.has_stable_row_ids,
            "indexes": dataset.has_index,
            "columns": dataset.lance_schema.to_pyarrow().names,
            "tags": {name: tag["version"] for name, tag in dataset.tags.list().items()},
            "config": dataset.config(),
            "metadata": dataset.metadata,
        }
    )


@cli.command(cls=UriCommand)
@click.option("--keys", default=20, show_default=True, help="Number of objects to create.")
@click.option("--threads", default=16, show_default=True, help="Number of concurrent writers per object.")
def probe(uri: str, output: Output, storage_options: dict[str, str] | None, keys: int, threads: int) -> None:
    """Test whether concurrent writers can commit safely at URI. Exit code 2 if not."""
    report = run_probe(uri, storage_options, keys=keys, threads=threads)
    facts: dict[str, Any] = {
        "uri": report.uri,
        "commits": report.strategy,
        "safe_for_many_writers": report.safe,
        "advice": report.advice,
    }
    if report.race is not None:
        facts |= {
            "attempts": report.race.attempts,
            "keys": report.race.keys,
            "keys_with_one_winner": report.race.winners.count(1),
            "most_winners": max(report.race.winners),
            "keys_with_wrong_bytes": report.race.wrong_bytes,
            "seconds": round(report.race.seconds, 2),
        }
    output.facts(facts)
    sys.exit(0 if report.safe else 2)


@cli.command(cls=TableCommand)
def versions(dataset: LanceDataset, output: Output) -> None:
    """List all versions with the operations that created them."""
    names: dict[int, list[str]] = {}
    for name, tag in dataset.tags.list().items():
        names.setdefault(tag["version"], []).append(name)
    rows = []
    for summary in dataset.versions():
        counts = summary["metadata"]
        transaction = dataset.read_transaction(summary["version"])
        rows.append(
            {
                "version": summary["version"],
                "committed": summary["timestamp"],
                "operation": None if transaction is None else operation_name(transaction.operation),
                "rows": int(counts["total_rows"]),
                "fragments": int(counts["total_fragments"]),
                "data_files": int(counts["total_data_files"]),
                "data_bytes": int(counts["total_files_size"]),
                "tags": names.get(summary["version"], []),
            }
        )
    output.table(rows, VERSION_COLUMNS)


@cli.command(cls=TableCommand)
@version_option
def schema(dataset: LanceDataset, output: Output) -> None:
    """List the fields of a table with ids and types."""
    rows = inspect.describe_schema(dataset.table_version.schema)
    output.table(rows, ["id", "path", "type", "nullable", "metadata"])


@cli.command(cls=TableCommand)
@version_option
@click.option("--rows", "-n", default=10, show_default=True, type=click.IntRange(min=0), help="Number of rows.")
@click.option("--columns", "-c", help="Column names, separated by commas.")
@click.option("--filter", "-f", "condition", help="SQL condition.")
def head(dataset: LanceDataset, output: Output, rows: int, columns: str | None, condition: str | None) -> None:
    """Print the first rows."""
    names = None if columns is None else [name.strip() for name in columns.split(",") if name.strip()]
    table = dataset.head(rows, columns=names, filter=condition)
    output.table(table.to_pylist(), table.schema.names)


@cli.command(cls=UriCommand)
@click.option("--to", "target", default="2.1", show_default=True, help="Target data format.")
@click.option(
    "--v2-names",
    is_flag=True,
    help="Also rename the manifests to the V2 scheme; requires that there are no other writers.",
)
def migrate(uri: str, output: Output, storage_options: dict[str, str] | None, target: str, v2_names: bool) -> None:
    """Rewrite the data files of a table in a newer format. If interrupted, run it again to continue."""
    # Rename first, because an interrupted renaming leaves both schemes, and such a table cannot be opened.
    renamed = rename_manifests(uri, storage_options) if v2_names else 0
    dataset = LanceDataset(uri, storage_options=storage_options)
    before = dataset.data_storage_version
    result = dataset.optimize.migrate(target)
    facts = {"uri": dataset.uri, "version": dataset.version, "from": before, "to": dataset.data_storage_version}
    output.facts({**facts, **asdict(result), "manifests_renamed": renamed})


@cli.command(cls=TableCommand)
@click.option("--target-rows", type=click.IntRange(min=1), help="Target number of rows per fragment.")
@click.option("--run", is_flag=True, help="Execute the plan instead of printing it.")
def compact(dataset: LanceDataset, output: Output, target_rows: int | None, run: bool) -> None:
    """Merge small fragments and remove deleted rows. Prints the plan; --run executes it."""
    options: dict[str, Any] = {} if target_rows is None else {"target_rows_per_fragment": target_rows}
    if run:
        metrics = Compaction.execute(dataset, options, progress=shows_progress())
        output.facts({"uri": dataset.uri, "version": dataset.version, **asdict(metrics)})
        return
    rows = [
        {
            "task": number,
            "fragments": [fragment.id for fragment in task.fragments],
            "rows": sum(fragment.num_rows for fragment in task.fragments),
            "deleted_rows": sum(fragment.num_deletions for fragment in task.fragments),
        }
        for number, task in enumerate(Compaction.plan(dataset, options))
    ]
    output.table(rows, ["task", "fragments", "rows", "deleted_rows"])


@cli.command(cls=TableCommand)
@click.option("--older-than", help="Minimum age of the versions to remove, such as 14days or 12h.")
@click.option("--retain", type=click.IntRange(min=1), help="Number of newest versions to keep.")
@click.option(
    "--delete-unverified",
    is_flag=True,
    help="Also remove recent unreferenced files; requires that there are no writers.",
)
@click.option("--run", is_flag=True, help="Remove the files instead of printing them.")
def cleanup(
    dataset: LanceDataset,
    output: Output,
    older_than: str | None,
    retain: int | None,
    delete_unverified: bool,
    run: bool,
) -> None:
    """Remove old versions and unreferenced files. Prints each file and the reason; --run removes them.

    Tagged versions and versions that branches depend on are kept. Exit code 2 if files could not be removed.
    """
    policy: dict[str, Any] = {
        "older_than": None if older_than is None else parse_duration(older_than),
        "retain_versions": retain,
        "delete_unverified": delete_unverified,
        "error_if_tagged_old_versions": False,
    }
    if run:
        stats = dataset.cleanup_old_versions(**policy, progress=shows_progress())
        output.facts({"uri": dataset.uri, **asdict(stats)})
        if stats.failed_deletes:
            click.echo(
                f"lancetable: {stats.failed_deletes} files could not be removed; run the command again", err=True
            )
            sys.exit(2)
        return
    explanation = dataset.explain_cleanup_old_versions(**policy, include_files=True, max_files=1_000_000)
    for warning in explanation.warnings:
        click.echo(f"lancetable: {warning}", err=True)
    rows = [
        {
            "kind": file.kind,
            "path": file.path,
            "bytes": file.size_bytes,
            "reason": "not referenced by any version" if file.unverified else "referenced only by old versions",
        }
        for file in explanation.candidate_files
    ]
    output.table(rows, ["kind", "path", "bytes", "reason"])


@cli.command(cls=UriCommand)
@click.option(
    "--repair",
    is_flag=True,
    help="Repair the problems that can be repaired without losing a version, then check again.",
)
@click.option("--deep", is_flag=True, help="Read every page of every data file.")
@click.option("--progress", is_flag=True, help="Show a progress bar.")
def fsck(
    uri: str, output: Output, storage_options: dict[str, str] | None, repair: bool, deep: bool, progress: bool
) -> None:
    """Check every version and every file of a table.

    Exit codes: 0 if there are no problems or all were repaired; 1 if the table does not exist or cannot be accessed;
    2 if problems remain.
    """
    report = checks.fsck(uri, repair=repair, deep=deep, storage_options=storage_options, progress=progress)
    if output.as_json:
        output.facts({**asdict(report), "clean": report.is_clean})
    else:
        _show_report(report, output)
    if not report.is_clean:
        sys.exit(2)


def _show_report(report: checks.Report, output: Output) -> None:
    branch = ["branch"] if any(problem.branch for problem in report.problems) else []
    columns = ["kind", *branch, "version", "path", "detail"]
    output.table([asdict(problem) for problem in report.problems], columns)
    output.facts(
        {
            "versions": report.versions,
            "files": report.files,
            "problems": len(report.problems),
            "newest_whole_version": report.newest_whole,
            "found_before_repair": len(report.found),
            "repaired": report.repaired,
            "not_repaired": report.failed,
        }
    )
    if report.not_checked:
        click.echo("\nNot checked:")
        output.table([asdict(item) for item in report.not_checked], ["kind", "path", "detail"])


class FileByDefault(click.Group):
    """Command group in which `inspect FILE` means `inspect file FILE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the command `file` if the first argument is not a command."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["file", *args]
        return super().parse_args(ctx, args)


@cli.group("inspect", cls=FileByDefault)
def inspect_group() -> None:
    """Show the contents of a manifest, a transaction or a data file. `inspect FILE` shows a data file."""


@inspect_group.command(cls=TableCommand)
@version_option
def manifest(dataset: LanceDataset, output: Output) -> None:
    """Show the manifest of one version."""
    output.tree(f"manifest of version {dataset.version}", inspect.describe_manifest(dataset))


@inspect_group.command(cls=TableCommand)
@version_option
def transaction(dataset: LanceDataset, output: Output) -> None:
    """Show the transaction that created one version."""
    described = inspect.describe_transaction(dataset)
    if described is None:
        raise click.ClickException(f"version {dataset.version} has no transaction")
    output.tree(f"transaction of version {dataset.version}", described)


@inspect_group.command("file", cls=UriCommand)
def data_file(uri: str, output: Output, storage_options: dict[str, str] | None) -> None:
    """Show a data file: columns, pages and their encodings."""
    output.tree(uri, inspect.describe_file(uri, storage_options))


@inspect_group.command("compression", cls=UriCommand)
def file_compression(uri: str, output: Output, storage_options: dict[str, str] | None) -> None:
    """Show Arrow bytes, file bytes and encodings of each column of a data file. Reads the whole file."""
    output.table(compression.describe_compression(uri, storage_options), compression.COLUMNS)


def shows_progress() -> bool:
    """Return True if progress bars can be shown: the standard error is a terminal and tqdm is installed."""
    return sys.stderr.isatty() and find_spec("tqdm") is not None


def operation_name(operation: Any) -> str:
    """Return the kind of an operation: the name of its class, or its `name` if it has no class of its own."""
    return str(getattr(operation, "name", type(operation).__name__))
