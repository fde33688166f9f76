"""The Trainer of Transformers, on a tiny Llama with random weights.

    torchrun --nproc-per-node 2 transformers_trainer.py FOLDER
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import transformers

import tiny
from llama import new_llama

transformers.logging.set_verbosity_error()

STEPS, BATCH, LENGTH, RATE = 6, 8, 12, 0.01

generator = torch.Generator().manual_seed(3)
tokens = torch.randint(0, 64, (STEPS * BATCH, LENGTH), generator=generator)


class InOrder(transformers.Trainer):
    """Takes the samples in their order, so that one process can do the same."""

    def _get_train_sampler(self, *_: object) -> torch.utils.data.Sampler:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def trained_alone() -> dict[str, torch.Tensor]:
    """Returns the parameters that a plain loop in one process trains."""
    model = new_llama().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for batch in tokens.split(BATCH):
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
    return dict(model.state_dict())


# The Trainer's own list of backends, `ddp_backend`, refuses names that it does not know.
dist.init_process_group("tbccl")
arguments = transformers.TrainingArguments(
    output_dir=sys.argv[1],
    use_cpu=True,
    per_device_train_batch_size=BATCH // tiny.size,
    num_train_epochs=1,
    learning_rate=RATE,
    lr_scheduler_type="constant",
    optim="sgd",
    max_grad_norm=0.0,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
assert arguments.world_size == tiny.size
samples = [{"input_ids": row, "labels": row} for row in tokens]
trainer = InOrder(model=new_llama(), args=arguments, train_dataset=samples)
trainer.train()
assert trainer.state.global_step == STEPS and dist.get_backend() == "tbccl"
model = trainer.accelerator.unwrap_model(trainer.model)
tiny.report("trainer", dict(model.state_dict()), trained_alone())
dist.destroy_process_group()
