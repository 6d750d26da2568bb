"""Entry point of the `lancetable` command. Its additional packages are in the extra `cli`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Exits with 1 if the library raises an error or a package of the extra is missing."""
    try:
        from lancetable.cli.commands import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("click", "rich"):
            raise
        sys.exit(f"lancetable: the command line requires {error.name}: pip install 'lancetable[cli]'")
    run()


if __name__ == "__main__":
    main()
