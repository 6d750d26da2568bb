"""Hooks of MkDocs: the generated pages of the reference, and checks of links and of the built pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scripts.reference_pages.pages import PAGES

_LOADED = re.compile(
    r"""<(?:script|img|iframe|source|audio|video)\b[^>]*\bsrc=["']([^"']*)|<link\b[^>]*\bhref=["']([^"']*)"""
)
_LINK = re.compile(r"<a\b[^>]*\bhref=[\"']([^\"']*)")


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to the pages in docs/."""
    for path, build in PAGES.items():
        files.append(File.generated(config, path, content=build()))
    return files


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Check the links of a built page, and that a browser loads it without requests to other hosts.

    Raises
    ------
    PluginError
        If a script, style or image has an address of another host, or if an external link is malformed.
    """
    for match in _LOADED.finditer(output):
        address = match[1] or match[2]
        if urlsplit(address).netloc:
            raise PluginError(f"{page.file.src_uri}: loads {address} from another host; store it in docs/")
    for match in _LINK.finditer(output):
        parts = urlsplit(match[1])
        if (parts.scheme or parts.netloc) and (parts.scheme != "https" or "." not in parts.netloc):
            raise PluginError(f"{page.file.src_uri}: malformed external link {match[1]}")
    return output
