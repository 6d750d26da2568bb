"""Ranks of `torch.distributed`, workers of a `DataLoader`, and both together."""

from __future__ import annotations

import torch.distributed as dist
import torch.utils.data

__all__ = [
    "get_dist_rank",
    "get_dist_world_size",
    "get_global_rank",
    "get_global_world_size",
    "get_mp_rank",
    "get_mp_world_size",
]


def has_process_group() -> bool:
    """Return whether the default process group of `torch.distributed` is initialized."""
    return bool(dist.is_available() and dist.is_initialized())


def get_dist_rank() -> int:
    """Return the rank in the default process group; 0 without one."""
    return int(dist.get_rank()) if has_process_group() else 0


def get_dist_world_size() -> int:
    """Return the size of the default process group; 1 without one."""
    return int(dist.get_world_size()) if has_process_group() else 1


def get_mp_rank() -> int:
    """Return the number of this worker of a `DataLoader`; 0 in the main process."""
    info = torch.utils.data.get_worker_info()
    return 0 if info is None else int(info.id)


def get_mp_world_size() -> int:
    """Return the number of workers of the `DataLoader`; 1 in the main process."""
    info = torch.utils.data.get_worker_info()
    return 1 if info is None else int(info.num_workers)


def get_global_rank() -> int:
    """Return the number of this worker among the workers of all ranks."""
    return get_dist_rank() * get_mp_world_size() + get_mp_rank()


def get_global_world_size() -> int:
    """Return the number of workers of all ranks."""
    return get_dist_world_size() * get_mp_world_size()
