"""Modules that the tests of this folder share, and the SQL texts of the tests of expressions."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "expr")]
