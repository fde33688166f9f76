"""Reinitialization of the default group; runs last."""

from __future__ import annotations

import torch
import torch.distributed as dist

from checks.common import assert_equal, data_of, rank, total


def check_one_more_group_of_the_whole_job_after_the_end() -> None:
    """A destroyed default group can be initialized again."""
    dist.destroy_process_group()
    dist.init_process_group("tbccl")
    tensor = data_of(rank)
    dist.all_reduce(tensor)
    assert_equal(tensor, total("SUM", (7,), torch.float32))
