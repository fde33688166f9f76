"""Training with DistributedDataParallel by tasks of Slurm.

    srun -n 2 python slurm_ddp.py
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tiny

dist.init_process_group("tbccl")
# Other users can read a store of task 0, so tasks of one node get a secret from it.
assert ("TBCCL_SECRET" in os.environ) == ("MASTER_ADDR" not in os.environ)
model = DistributedDataParallel(tiny.new_model())
optimizer = tiny.sgd(model.parameters())
for inputs, targets in tiny.training_batches():
    parts = (batch.chunk(tiny.size)[tiny.rank] for batch in (inputs, targets))
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(next(parts)), next(parts)).backward()
    optimizer.step()
tiny.report("srun", dict(model.module.state_dict()), tiny.trained_alone())
dist.destroy_process_group()
