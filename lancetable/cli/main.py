"""Entry point of the `lancetable` command. Its additional packages are in the extra `cli`."""

from __future__ import annotations

import sys

from lancetable.errors import LanceError


def main() -> None:
    """Run the command line. Exits with 1 if the library raises an error or a package of the extra is missing."""
    try:
        from lancetable.cli.commands import cli
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("click", "rich"):
            raise
        sys.exit(f"lancetable: the command line requires {error.name}: pip install 'lancetable[cli]'")
    try:
        cli()
    except LanceError as error:
        from lancetable.report.text import visible_lines

        sys.exit(f"lancetable: {visible_lines(str(error))}")


if __name__ == "__main__":
    main()
