"""A training job in processes of its own, for `test_loader.py`: every rank logs the rows of each batch.

    python jobs.py URI DIRECTORY RANK WORLD_SIZE OPTIONS

OPTIONS is JSON: arguments of `LanceDataset`, and `num_workers`, `epochs`, `start_method`, `loader` ("own" or
"stateful"). For each batch, the process appends the rows to `DIRECTORY/rank-N.log` and replaces the checkpoint
`rank-N.pt`. If that exists, it resumes there, and removes later lines of the log. If there is a file `DIRECTORY/wait`,
it waits after five batches.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lancetable.torch.data import LanceDataLoader, LanceDataset


def make_loader(dataset: LanceDataset, kind: str, num_workers: int, start_method: str | None) -> Any:
    context = start_method if num_workers else None
    if kind == "own":
        return LanceDataLoader(dataset, num_workers, multiprocessing_context=context)
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(dataset, batch_size=None, num_workers=num_workers, multiprocessing_context=context)


def main(uri: str, directory: Path, rank: int, world_size: int, options: dict[str, Any]) -> None:
    arguments = {"num_workers": 2, "epochs": 1, "start_method": "fork", "loader": "own", **options}
    num_workers, epochs, start_method, kind = (
        arguments.pop(name) for name in ("num_workers", "epochs", "start_method", "loader")
    )
    if world_size > 1:
        dist.init_process_group("gloo", init_method=f"file://{directory}/group", rank=rank, world_size=world_size)
    dataset = LanceDataset(uri, columns=["id"], **arguments)
    loader = make_loader(dataset, kind, num_workers, start_method)
    checkpoint, log = directory / f"rank-{rank}.pt", directory / f"rank-{rank}.log"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        dataset.set_epoch(saved["epoch"])
        loader.load_state_dict(saved["loader"])
        os.truncate(log, saved["log_bytes"])
    for epoch in range(dataset.epoch, epochs):
        dataset.set_epoch(epoch)
        for batch in loader:
            with log.open("a") as lines:
                lines.write(json.dumps([epoch, batch.tolist()]) + "\n")
            state = {"epoch": epoch, "loader": loader.state_dict(), "log_bytes": log.stat().st_size}
            torch.save(state, checkpoint.with_suffix(".new"))
            os.replace(checkpoint.with_suffix(".new"), checkpoint)
            while (directory / "wait").exists() and len(log.read_text().splitlines()) >= 5:
                time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), json.loads(sys.argv[5]))
