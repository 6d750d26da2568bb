"""Classes and options that commands share: URI, storage options, version, JSON output, and confirmation of changes."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

import lancetable

if TYPE_CHECKING:
    from lancetable.cli.output import Output

OPTION_HELP = "Storage option as key=value; may be repeated."


def parse_options(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    """Return `key=value` pairs as a dict, or None if there are none. Raises click.BadParameter."""
    pairs = [value.partition("=") for value in values]
    for key, separator, _ in pairs:
        if not key or not separator:
            raise click.BadParameter("expected key=value")
    return {key: value for key, _, value in pairs} or None


def select_output(context: click.Context, parameter: click.Parameter, value: bool) -> Output:
    """Return an output that prints JSON if `value` is true, and readable text otherwise."""
    from lancetable.cli.output import Output

    return Output(value)


def parse_version(context: click.Context, parameter: click.Parameter, value: str | None) -> int | str | None:
    """Return a number as a version, and any other string as a tag."""
    return int(value) if value is not None and value.isdecimal() else value


def parse_names(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str] | None:
    """Return names separated by commas as a list."""
    return None if value is None else [name.strip() for name in value.split(",") if name.strip()]


def announce(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
    """Without --run, print at the end of the command that nothing was changed."""
    if not value:
        context.call_on_close(lambda: click.echo("lancetable: nothing was changed; run again with --run", err=True))
    return value


version_option = click.option(
    "--version", "-v", "version", callback=parse_version, help="Version number or tag; default: the newest."
)
run_option = click.option("--run", is_flag=True, callback=announce, help="Make the change instead of printing it.")


class UriCommand(click.Command):
    """A command whose function receives a URI, storage options and the output."""

    storage_option_names: tuple[str, ...] = ("--option", "-o")

    def __init__(self, *, params: list[click.Parameter], **kwargs: Any) -> None:
        common: list[click.Parameter] = [
            click.Argument(["uri"]),
            click.Option(
                [*self.storage_option_names, "storage_options"],
                multiple=True,
                callback=parse_options,
                help=OPTION_HELP,
            ),
            click.Option(["--untrusted"], is_flag=True, help="Reject paths outside the table; apply strict limits."),
            click.Option(["--json", "output"], is_flag=True, callback=select_output, help="Print JSON."),
        ]
        super().__init__(params=[*common, *params], **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Pass --untrusted on as a storage option."""
        rest = super().parse_args(ctx, args)
        from lancetable.store.open import with_untrusted  # imported here, because --help exits above

        ctx.params["storage_options"] = with_untrusted(ctx.params["storage_options"], ctx.params.pop("untrusted"))
        return rest


class TableCommand(UriCommand):
    """A command whose function receives the open dataset and the output."""

    def invoke(self, ctx: click.Context) -> Any:
        """Open the dataset and call the command."""
        arguments = ctx.params
        arguments["dataset"] = lancetable.LanceDataset(
            arguments.pop("uri"), arguments.pop("version", None), storage_options=arguments.pop("storage_options")
        )
        return super().invoke(ctx)


def shows_progress() -> bool:
    """Return True if progress bars can be shown: the standard error is a terminal and tqdm is installed."""
    return sys.stderr.isatty() and find_spec("tqdm") is not None
