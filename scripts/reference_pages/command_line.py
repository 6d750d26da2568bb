"""Page of the command line, from the definitions of the commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from lancetable.cli.commands import cli
from scripts.reference_pages.markdown import table

_INTRODUCTION = """# Command line

Generated from the commands. Install with `pip install 'lancetable[cli]'`. `python -m lancetable` is the same command.

- URI is a path or any address, such as `s3://bucket/table.lance`. A storage option is passed as `-o key=value`, except
  to `report`, where `-o` is the file to write and `--option key=value` a storage option.
- Commands that rewrite or remove data print what they would do; `--run` does it.
- `--json` prints JSON. Times are in UTC.
- `python -m lancetable.spark run` is the command for [Spark pipelines](spark-pipelines.md).

## Exit codes

| exit code | |
| --- | --- |
| 0 | The command succeeded. |
| 1 | The command failed; the error is on the standard error. |
| 2 | The command line is invalid; or `fsck` found problems, `probe` found the store unsafe, `cleanup` left files. |

## Options of all commands

{common}
"""


def commands(group: click.Group = cli, prefix: str = "lancetable") -> Iterator[tuple[str, click.Command]]:
    """Yield each command and group with its full name, such as `lancetable index list`."""
    for name, command in sorted(group.commands.items()):
        yield f"{prefix} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix} {name}")


def page() -> str:
    """Return the page."""
    shared = _shared_options()
    parts = [_INTRODUCTION.format(common=_options(shared.values()))]
    for name, command in commands():
        parts.append(f"## {name}\n")
        if not isinstance(command, click.Group):
            context = click.Context(command)
            arguments = [each.make_metavar(context) for each in command.params if isinstance(each, click.Argument)]
            parts.append(f"```text\n{' '.join([name, '[OPTIONS]', *arguments])}\n```\n")
        parts.append(f"{_help(command)}\n")
        options = [each for each in command.params if isinstance(each, click.Option) and each.name not in shared]
        if options:
            parts.append(_options(options) + "\n")
    return "\n".join(parts)


def _shared_options() -> dict[str, click.Option]:
    """Return the options that all commands have, by name."""
    every = [
        {each.name: each for each in command.params if isinstance(each, click.Option) and each.name is not None}
        for _, command in commands()
        if not isinstance(command, click.Group)
    ]
    return {name: option for name, option in every[0].items() if all(name in other for other in every)}


def _help(command: click.Command) -> str:
    paragraphs = (command.help or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _options(options: Iterable[click.Option]) -> str:
    rows = []
    for option in options:
        names = ", ".join(f"`{name}`" for name in option.opts)
        value = "" if option.is_flag else f" {option.make_metavar(click.Context(cli)).strip('[]')}"
        default = f" Default: `{option.default}`." if option.show_default else ""
        rows.append([f"{names}{value}", f"{option.help}{default}"])
    return table(["option", ""], rows)
