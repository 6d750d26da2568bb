"""A missing optional package is reported with the extra that installs it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("package", "code", "extra"),
    [
        ("torch", "import lancetable.torch.data", "torch"),
        ("datasets", "import lancetable.hf; lancetable.hf.to_dataset('t.lance')", "huggingface"),
    ],
)
def test_a_missing_package_is_reported_with_its_extra(package: str, code: str, extra: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; {code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    message = done.stderr.splitlines()[-1]
    assert message.startswith("lancetable.errors.MissingPackageError: ")
    assert f"pip install 'lancetable[{extra}]'" in message
