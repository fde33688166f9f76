"""Training that torchrun starts again, from a checkpoint, after the loss of a rank.

    torchrun --nproc-per-node 2 --max-restarts 1 restarted.py FOLDER

In the first run the last rank kills itself half-way.
"""

from __future__ import annotations

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tiny

checkpoint = os.path.join(sys.argv[1], "checkpoint")
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("tbccl")
model = DistributedDataParallel(tiny.new_model())
optimizer = tiny.sgd(model.parameters())
first = 0
if os.path.exists(checkpoint):
    saved = torch.load(checkpoint)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
for step, (inputs, targets) in enumerate(tiny.training_batches()):
    if step < first:
        continue
    if restarts == 0 and step == tiny.STEPS // 2 and tiny.rank == tiny.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    parts = (batch.chunk(tiny.size)[tiny.rank] for batch in (inputs, targets))
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(next(parts)), next(parts)).backward()
    optimizer.step()
    if tiny.rank == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(state, f"{checkpoint}.new")
        # A rank that dies in the midst leaves the last whole checkpoint.
        os.replace(f"{checkpoint}.new", checkpoint)
tiny.tell(f"restarts {tiny.rank} {restarts} {first}")
tiny.report("torchrun", dict(model.module.state_dict()), tiny.trained_alone())
dist.destroy_process_group()
