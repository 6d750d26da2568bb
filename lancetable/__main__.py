"""The command line: `python -m lancetable`."""

from __future__ import annotations

from lancetable.cli.main import main

if __name__ == "__main__":
    main()
