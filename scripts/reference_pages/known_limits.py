"""Page of the known limits, from ARCHITECTURE.md."""

from __future__ import annotations

from pathlib import Path

import lancetable

_TITLE = "## 5. Known limits\n"


def page() -> str:
    """Return the page."""
    text = Path(lancetable.__file__).with_name("ARCHITECTURE.md").read_text(encoding="utf-8")
    return f"# Known limits\n\nGenerated from `lancetable/ARCHITECTURE.md`.\n{text.partition(_TITLE)[2]}"
