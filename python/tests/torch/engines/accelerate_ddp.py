"""Hugging Face Accelerate, which adopts the process group that it finds.

    torchrun --nproc-per-node 2 accelerate_ddp.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from accelerate import Accelerator, DataLoaderConfiguration

import tiny

# Accelerate's own list of backends refuses names that it does not know.
dist.init_process_group("tbccl")
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
assert accelerator.num_processes == tiny.size, accelerator.state
model = tiny.new_model()
loader = torch.utils.data.DataLoader(tiny.samples(), batch_size=tiny.BATCH)
model, optimizer, loader = accelerator.prepare(model, tiny.sgd(model.parameters()), loader)
for inputs, targets in loader:
    optimizer.zero_grad()
    accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
    optimizer.step()
gathered = accelerator.gather(torch.tensor([tiny.rank]))
assert gathered.tolist() == list(range(tiny.size)), gathered
tiny.report("accelerate", dict(accelerator.unwrap_model(model).state_dict()), tiny.trained_alone())
assert dist.get_backend() == "tbccl"
dist.destroy_process_group()
