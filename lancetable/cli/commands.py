"""Commands of the command line. Each command imports its modules when it runs, so that `--help` is fast."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import lancetable
from lancetable import ops
from lancetable.cli.index_commands import index_group
from lancetable.cli.table_command import (
    TableCommand,
    UriCommand,
    parse_names,
    parse_version,
    run_option,
    shows_progress,
    version_option,
)

if TYPE_CHECKING:
    from lancetable import LanceDataset
    from lancetable.cli.output import Output
    from lancetable.table.manifest_files import VersionSummary
    from lancetable.table_checks import Report

VERSION_COLUMNS = ("version", "committed", "operation", "rows", "fragments", "data_files", "data_bytes", "tags")


@click.group()
@click.version_option(lancetable.__version__, prog_name="lancetable")
def cli() -> None:
    """Inspect and maintain Lance tables and files, at a path or any URI.

    Exit codes: 0 if the command succeeded; 1 if it failed; 2 if the command line is invalid, or if fsck found problems,
    probe found the store unsafe, or cleanup left files.
    """


cli.add_command(index_group)


@cli.command(cls=TableCommand)
@version_option
def info(dataset: LanceDataset, output: Output) -> None:
    """Show the properties of a table: version, rows, files, format, tags."""
    from lancetable.table import manifest_files

    manifest = dataset.table_version.manifest
    writer = manifest.writer_version
    output.properties(
        {
            "uri": dataset.uri,
            "version": dataset.version,
            "latest_version": dataset.latest_version,
            **version_properties(manifest_files.summarize(manifest)),
            "written_by": None if writer is None else f"{writer.library} {writer.version}",
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
    from lancetable.ops.maintain.commit_probe import probe as run_probe

    report = run_probe(uri, storage_options, keys=keys, threads=threads)
    properties: dict[str, Any] = {
        "uri": report.uri,
        "commits": report.strategy,
        "safe_for_many_writers": report.safe,
        "advice": report.advice,
    }
    if report.race is not None:
        properties |= {
            "attempts": report.race.attempts,
            "keys": report.race.keys,
            "keys_with_one_winner": report.race.winners.count(1),
            "most_winners": max(report.race.winners),
            "keys_with_wrong_bytes": report.race.wrong_bytes,
            "seconds": round(report.race.seconds, 2),
        }
    output.properties(properties)
    sys.exit(0 if report.safe else 2)


@cli.command(cls=TableCommand)
def versions(dataset: LanceDataset, output: Output) -> None:
    """List all versions with the operations that created them."""
    from lancetable.report import history
    from lancetable.table import manifest_files

    tagged = dataset.tags.list().items()
    rows = []
    for summary in manifest_files.history(dataset.table_version):
        transaction = dataset.read_transaction(summary.version)
        operation = None if transaction is None else history.operation_name(transaction.operation)
        tags = [name for name, tag in tagged if tag["version"] == summary.version]
        rows.append({**version_properties(summary), "operation": operation, "tags": tags})
    output.table(rows, VERSION_COLUMNS)


@cli.command(cls=TableCommand)
@version_option
def schema(dataset: LanceDataset, output: Output) -> None:
    """List the fields of a table with ids and types."""
    from lancetable.cli import inspect

    rows = inspect.describe_schema(dataset.table_version.schema)
    output.table(rows, ["id", "path", "type", "nullable", "metadata"])


@cli.command(cls=TableCommand)
@version_option
@click.option("--rows", "-n", default=10, show_default=True, type=click.IntRange(min=0), help="Number of rows.")
@click.option("--columns", "-c", callback=parse_names, help="Column names, separated by commas.")
@click.option("--filter", "-f", "condition", help="SQL condition.")
def head(dataset: LanceDataset, output: Output, rows: int, columns: list[str] | None, condition: str | None) -> None:
    """Print the first rows."""
    from lancetable.cli.output import rows_of

    table = dataset.head(rows, columns=columns, filter=condition)
    output.table(rows_of(table), table.schema.names)


@cli.command(cls=TableCommand)
@version_option
@click.option("--filter", "-f", "condition", help="SQL condition.")
def count(dataset: LanceDataset, output: Output, condition: str | None) -> None:
    """Count the rows, or those that match a condition."""
    output.properties({"uri": dataset.uri, "version": dataset.version, "rows": dataset.count_rows(condition)})


@cli.command(cls=TableCommand)
@click.argument("older", callback=parse_version)
@click.argument("version", metavar="[NEWER]", required=False, callback=parse_version)
@click.option("--key", "-k", callback=parse_names, help="Columns that identify a row; default: stable row ids.")
def diff(dataset: LanceDataset, output: Output, older: int | str, key: list[str] | None) -> None:
    """Compare two versions: rows, fragments and columns. NEWER is the newest version by default.

    Rows are matched by --key or stable row id. Without either, only their numbers are compared.
    """
    from lancetable.cli import inspect

    before = dataset.checkout_version(older)
    changes = inspect.describe_changes(before, dataset)
    if key or (before.has_stable_row_ids and dataset.has_stable_row_ids):
        rows = dataset.diff(older, key=key)
        changes |= {f"rows_{name}": len(getattr(rows, name)) for name in ("inserted", "updated", "deleted")}
    output.properties({"uri": dataset.uri, **changes})


@cli.command(cls=TableCommand)
@click.option("--filter", "-f", "condition", required=True, help="SQL condition.")
@run_option
def delete(dataset: LanceDataset, output: Output, condition: str, run: bool) -> None:
    """Delete the rows that match a condition. Prints their number; --run deletes them."""
    num_rows = dataset.delete(condition)["num_deleted_rows"] if run else dataset.count_rows(condition)
    name = "deleted_rows" if run else "matching_rows"
    output.properties({"uri": dataset.uri, "version": dataset.version, name: num_rows, "rows": dataset.count_rows()})


@cli.command(cls=TableCommand)
@click.argument("version", callback=parse_version)
@run_option
def restore(dataset: LanceDataset, output: Output, run: bool) -> None:
    """Make VERSION, a number or tag, the newest version again. Prints it; --run commits. Later versions are kept."""
    restored = dataset.version
    if run:
        dataset.restore()
    properties = {"restored_version": restored, "newest_version": dataset.latest_version, "rows": dataset.count_rows()}
    output.properties({"uri": dataset.uri, **properties})


@cli.command(cls=TableCommand)
@click.option("--create", metavar="NAME", help="Create a tag for --version.")
@click.option("--move", metavar="NAME", help="Move a tag to --version.")
@click.option("--delete", metavar="NAME", help="Delete a tag.")
@version_option
def tags(dataset: LanceDataset, output: Output, create: str | None, move: str | None, delete: str | None) -> None:
    """Create, move or delete a tag, then list all tags."""
    for name, change in ((create, dataset.tags.create), (move, dataset.tags.update), (delete, dataset.tags.delete)):
        if name is not None:
            change(name)
    columns = ["tag", "version", "branch", "created_at", "updated_at"]
    output.table([{"tag": name, **tag} for name, tag in dataset.tags.list_ordered()], columns)


@cli.command(cls=TableCommand)
@click.option("--create", metavar="NAME", help="Create a branch from --version.")
@click.option("--delete", metavar="NAME", help="Delete a branch with its versions and files; requires --run.")
@click.option("--run", is_flag=True, help="Confirm --delete.")
@version_option
def branches(dataset: LanceDataset, output: Output, create: str | None, delete: str | None, run: bool) -> None:
    """Create or delete a branch, then list all branches with the URI for other commands."""
    from lancetable.table.version import uri_of_branch

    if delete is not None and not run:
        raise click.UsageError(f"--delete removes all versions and files of branch {delete}; add --run to confirm")
    for name, change in ((create, dataset.create_branch), (delete, dataset.branches.delete)):
        if name is not None:
            change(name)
    rows = []
    for name, branch in dataset.branches.list_ordered():
        created = datetime.fromtimestamp(branch["create_at"], timezone.utc)
        rows.append({**branch, "branch": name, "create_at": created, "uri": uri_of_branch(dataset.table_version, name)})
    output.table(rows, ["branch", "parent_branch", "parent_version", "create_at", "uri"])


@cli.command(cls=UriCommand)
@click.option("--to", default="stable", show_default=True, help="Target data format.")
@click.option("--v2-names", "rename", is_flag=True, help="Also rename the manifests to V2; stop other writers first.")
@run_option
def migrate(uri: str, output: Output, storage_options: dict[str, str] | None, to: str, rename: bool, run: bool) -> None:
    """Rewrite the data files of a table in a newer format. Prints the plan; --run executes it.

    If interrupted, run it again to continue.
    """
    # Rename first: an interrupted renaming leaves manifests of both schemes, and such a table cannot be opened.
    renamed = ops.migrate.rename_manifests(uri, storage_options, run=run) if rename else 0
    dataset = lancetable.LanceDataset(uri, storage_options=storage_options)
    before = dataset.data_storage_version
    if run:
        changes = {**asdict(dataset.optimize.migrate(to)), "manifests_renamed": renamed}
    else:
        fragments = ops.migrate.plan_migration(dataset.table_version, to)
        changes = {"fragments_to_change": len(fragments), "manifests_to_rename": renamed}
    output.properties({"uri": dataset.uri, "version": dataset.version, "from": before, "to": to, **changes})


@cli.command(cls=TableCommand)
@click.option("--target-rows", type=click.IntRange(min=1), help="Target number of rows per fragment.")
@run_option
def compact(dataset: LanceDataset, output: Output, target_rows: int | None, run: bool) -> None:
    """Merge small fragments and remove deleted rows. Prints the plan; --run executes it."""
    options: dict[str, Any] = {} if target_rows is None else {"target_rows_per_fragment": target_rows}
    if run:
        metrics = lancetable.optimize.Compaction.execute(dataset, options, progress=shows_progress())
        output.properties({"uri": dataset.uri, "version": dataset.version, **asdict(metrics)})
        return
    rows = []
    for number, task in enumerate(lancetable.optimize.Compaction.plan(dataset, options)):
        fragments = [lancetable.LanceFragment(dataset, fragment.id) for fragment in task.fragments]
        rows.append(
            {
                "task": number,
                "fragments": [fragment.fragment_id for fragment in fragments],
                "rows": sum(fragment.count_rows() for fragment in fragments),
                "deleted_rows": sum(fragment.num_deletions for fragment in fragments),
            }
        )
    output.table(rows, ["task", "fragments", "rows", "deleted_rows"])


@cli.command(cls=TableCommand)
@click.option("--older-than", help="Minimum age of the versions to remove, such as 14days or 12h.")
@click.option("--retain", type=click.IntRange(min=1), help="Number of newest versions to keep.")
@click.option("--delete-unverified", is_flag=True, help="Also remove recent unreferenced files; stop writers first.")
@run_option
def cleanup(
    dataset: LanceDataset,
    output: Output,
    older_than: str | None,
    retain: int | None,
    delete_unverified: bool,
    run: bool,
) -> None:
    """Remove old versions and unreferenced files. Prints each file and the reason; --run removes them.

    Tagged versions and versions that branches depend on are kept. Exit code 2 if some files could not be removed.
    """
    from lancetable.commit.cleanup.durations import parse_duration

    policy: dict[str, Any] = {
        "older_than": None if older_than is None else parse_duration(older_than),
        "retain_versions": retain,
        "delete_unverified": delete_unverified,
        "error_if_tagged_old_versions": False,
    }
    if run:
        stats = dataset.cleanup_old_versions(**policy, progress=shows_progress())
        output.properties({"uri": dataset.uri, **asdict(stats)})
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

    Exit codes: 0 if fsck found no problems or repaired all of them; 1 if the table does not exist or cannot be
    accessed; 2 if problems remain.
    """
    report = lancetable.fsck(uri, repair=repair, deep=deep, storage_options=storage_options, progress=progress)
    if output.as_json:
        output.properties({**asdict(report), "clean": report.is_clean})
    else:
        _show_report(report, output)
    if not report.is_clean:
        sys.exit(2)


def _show_report(report: Report, output: Output) -> None:
    branch = ["branch"] if any(problem.branch for problem in report.problems) else []
    columns = ["kind", *branch, "version", "path", "detail"]
    if report.problems:
        output.table([asdict(problem) for problem in report.problems], columns)
    output.properties(
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


class ReportCommand(TableCommand):
    """A command whose option -o is the file to write; a storage option is --option."""

    storage_option_names = ("--option",)


@cli.command(cls=ReportCommand)
@version_option
@click.option("--output", "-o", "path", metavar="FILE", help="File to write; JSON with --json or a name in .json.")
@click.option("--versions", default=1000, show_default=True, type=click.IntRange(min=1), help="Number of versions.")
@click.option(
    "--files", default=32, show_default=True, type=click.IntRange(min=1), help="Number of data files to read."
)
@click.option("--file", metavar="PATH", help="Data file whose pages are shown first, relative to data/.")
def report(
    dataset: LanceDataset, output: Output, path: str | None, versions: int, files: int, file: str | None
) -> None:
    """Write a report on a table as one HTML file: versions, fragments, columns, pages, indexes, advice.

    Without -o, print a summary with the advice, or the whole report as JSON.
    """
    if path is not None and "=" in path and not path.endswith((".html", ".json")):
        raise click.BadParameter(f"{path!r} looks like a storage option, which is --option here", param_hint="-o")
    made = dataset.report(max_versions=versions, max_files=files, file=file, progress=shows_progress())
    if path is None:
        click.echo(made.to_json() if output.as_json else repr(made))
        return
    as_json = output.as_json or path.endswith(".json")
    text = made.to_json() if as_json else made.to_html()
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.FileError(path, error.strerror or str(error)) from error
    click.echo(f"lancetable: wrote {path}", err=True)


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
    from lancetable.cli import inspect

    output.tree(f"manifest of version {dataset.version}", inspect.describe_manifest(dataset))


@inspect_group.command(cls=TableCommand)
@version_option
def transaction(dataset: LanceDataset, output: Output) -> None:
    """Show the transaction that created one version."""
    from lancetable.cli import inspect

    described = inspect.describe_transaction(dataset)
    if described is None:
        raise click.ClickException(f"version {dataset.version} has no transaction")
    output.tree(f"transaction of version {dataset.version}", described)


@inspect_group.command("file", cls=UriCommand)
def data_file(uri: str, output: Output, storage_options: dict[str, str] | None) -> None:
    """Show a data file: columns, pages and their encodings."""
    from lancetable.cli import inspect

    output.tree(uri, inspect.describe_file(uri, storage_options))


@inspect_group.command("compression", cls=UriCommand)
def file_compression(uri: str, output: Output, storage_options: dict[str, str] | None) -> None:
    """Show Arrow bytes, file bytes and encodings of each column of a data file. Reads the whole file."""
    from lancetable.cli import compression_report

    output.table(compression_report.describe_compression(uri, storage_options), compression_report.COLUMNS)


def version_properties(summary: VersionSummary) -> dict[str, Any]:
    """Return the number, commit time and sizes of a version."""
    return {
        "version": summary.version,
        "committed": summary.timestamp,
        "rows": summary.total_rows,
        "deleted_rows": summary.total_deletion_file_rows,
        "fragments": summary.total_fragments,
        "data_files": summary.total_data_files,
        "data_bytes": summary.total_files_size,
    }
