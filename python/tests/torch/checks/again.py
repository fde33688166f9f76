"""What comes last: what is ended can begin again."""

from __future__ import annotations

import torch
import torch.distributed as dist

from checks.common import given, rank, same, total


def check_one_more_group_of_the_whole_job_after_the_end() -> None:
    """Last: what is ended can begin again."""
    dist.destroy_process_group()
    dist.init_process_group("tbccl")
    tensor = given(rank)
    dist.all_reduce(tensor)
    same(tensor, total("SUM", (7,), torch.float32))
