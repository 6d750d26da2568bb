"""Entry point of the `lancetable` command. What it needs beyond the library is the extra `cli`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; ends the process with 1 after an error of the library."""
    try:
        from lancetable.cli.commands import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("click", "rich"):
            raise
        sys.exit(f"lancetable: the command line needs {error.name}: pip install 'lancetable[cli]'")
    run()


if __name__ == "__main__":
    main()
