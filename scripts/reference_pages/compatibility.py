"""Page of the compatibility with pylance, from its recorded signatures and the names that are out of scope."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lancetable import scope
from scripts.reference_pages.markdown import table

_ROOT = Path(__file__).parents[2]
GAPS = {
    "LanceDataset": scope.DATASET,
    "LanceScanner": scope.SCANNER,
    "dataset.ScannerBuilder": scope.SCANNER_BUILDER,
    "dataset.MergeInsertBuilder": scope.MERGE_INSERT,
}
# Names of the modules that need PyTorch or Hugging Face `datasets`, whose signatures are not recorded.
TRAINING = {
    "torch": ["preferred_device"],
    "torch.data": ["LanceDataset", "SafeLanceDataset", "get_safe_loader"],
    "torch.dist": [f"get_{kind}_{what}" for kind in ("dist", "mp", "global") for what in ("rank", "world_size")],
    "hf": ["HuggingFaceConverter"],
}
_INTRODUCTION = """# Compatibility with pylance

Generated from `lancetable/scope.py` and from the recorded signatures of pylance 14. `import lancetable as lance` runs
code that uses the names marked "yes", with the same parameters and defaults; tests compare each signature. A name
marked "no" exists and raises `UnsupportedFeatureError` with the reason, and a module `ImportError`. Differences of the
classes for training: [Training from a table](../tutorials/training.md#differences-from-pylance).

## Out of scope

{gaps}

## Name by name
"""


def gaps() -> list[tuple[str, str]]:
    """Return each full name that is out of scope, with the reason."""
    groups = {
        "lance": scope.MODULE,
        "lance.LanceDataset": scope.DATASET,
        "lance.dataset.MergeInsertBuilder": scope.MERGE_INSERT,
        "lance.LanceScanner": scope.SCANNER,
        "lance.dataset.ScannerBuilder": scope.SCANNER_BUILDER,
        "lance.vector": scope.VECTOR,
        "lance.util": scope.UTIL,
        "lance.torch": scope.TORCH,
        "lance.torch.data": scope.TORCH_DATA,
    }
    found = [
        (f"{owner}.{name}", reason)
        for owner, group in groups.items()
        for name, reason in scope.missing_names(group).items()
    ]
    return found + [(f"lance.{name}", reason) for name, reason in scope.missing_names(scope.MODULES).items()]


def signatures() -> dict[str, Any]:
    """Return the recorded signatures of pylance."""
    recorded: dict[str, Any] = json.loads((_ROOT / "tests/golden/pylance_signatures.json").read_text(encoding="utf-8"))
    return recorded


def page() -> str:
    """Return the page."""
    rows = [[f"`{name}`", reason] for name, reason in gaps()]
    missing = table(["name of pylance", "reason, and what to use instead"], rows)
    parts = [_INTRODUCTION.format(gaps=missing)]
    functions = [[f"`{module}.{name}`", "yes"] for module, names in TRAINING.items() for name in names]
    for owner, described in signatures().items():
        if not isinstance(described, dict):
            functions.append([f"`{owner}`", "yes"])
            continue
        reasons = scope.missing_names(GAPS.get(owner, {}))
        names = [name for name in described if not name.startswith("_")]
        rows = [[f"`{name}`", f"no: {reasons[name]}" if name in reasons else "yes"] for name in names]
        parts.append(f"### {owner}\n\n{table(['name', ''], rows) if rows else 'yes'}\n")
    parts.insert(1, "### Functions, and classes for training\n\n" + table(["name", ""], sorted(functions)) + "\n")
    return "\n".join(parts)
