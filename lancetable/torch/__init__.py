"""Training of PyTorch models from tables: `lancetable.torch.data`, with the names of pylance's `lance.torch`.

Requires `pip install 'lancetable[torch]'`.
"""

from __future__ import annotations

from lancetable.errors import MissingPackageError

try:
    import torch
except ImportError as error:
    raise MissingPackageError(
        "lancetable.torch requires PyTorch: pip install 'lancetable[torch]'", name="torch"
    ) from error

__all__ = ["preferred_device"]


def preferred_device(device: str | None = None) -> str:
    """Return `device` or, by default, the best device of this machine: "cuda", "mps" or "cpu".

    Examples
    --------
    >>> from lancetable.torch import preferred_device
    >>> preferred_device("cpu")
    'cpu'
    """
    if device is not None:
        return device
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
