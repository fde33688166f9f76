"""Lightning, whose strategy takes the name of the backend.

    torchrun --nproc-per-node 2 lightning_ddp.py
"""

from __future__ import annotations

import logging
import warnings

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy

import tiny

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(lightning.LightningModule):
    """The model, its loss and its optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.model = tiny.new_model()

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        assert dist.get_backend() == "tbccl"
        return torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return tiny.sgd(self.parameters())


module = Module()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=tiny.size,
    strategy=DDPStrategy(process_group_backend="tbccl"),
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    # Lightning's own sampler shuffles.
    use_distributed_sampler=False,
)
samples = tiny.samples()
sampler = torch.utils.data.DistributedSampler(samples, tiny.size, tiny.rank, shuffle=False)
loader = torch.utils.data.DataLoader(samples, batch_size=tiny.BATCH // tiny.size, sampler=sampler)
trainer.fit(module, loader)
assert trainer.world_size == tiny.size and trainer.global_step == tiny.STEPS
tiny.report("lightning", dict(module.model.state_dict()), tiny.trained_alone())
