"""Datasets and loaders of PyTorch for tables, with the names of pylance's `lance.torch.data`.

    dataset = LanceDataset("/data/train.lance", batch_size=256, shuffle=True)
    loader = LanceDataLoader(dataset, num_workers=2)
    for epoch in range(3):
        dataset.set_epoch(epoch)
        for batch in loader:                       # {"image": tensor, "label": tensor}
            ...
    torch.save(loader.state_dict(), "loader.pt")   # at any batch

`LanceDataset` streams batches, `SafeLanceDataset` reads rows by number.
"""

from __future__ import annotations

from lancetable import scope
from lancetable.torch.iterable import LanceDataset
from lancetable.torch.loader import LanceDataLoader
from lancetable.torch.random_access import SafeLanceDataset, get_safe_loader
from lancetable.torch.tensors import to_tensor

__all__ = ["LanceDataLoader", "LanceDataset", "SafeLanceDataset", "get_safe_loader", "to_tensor"]

__getattr__ = scope.stubs_of_module(__name__, scope.TORCH_DATA)
