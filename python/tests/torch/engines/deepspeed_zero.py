"""DeepSpeed on CPUs, with ZeRO of each stage.

    torchrun --nproc-per-node 2 deepspeed_zero.py
"""

from __future__ import annotations

import logging
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import tiny  # noqa: E402

logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
deepspeed.init_distributed(dist_backend="tbccl", verbose=False)
assert dist.get_backend() == "tbccl"
for stage in (0, 1, 2, 3):
    model = tiny.new_model()
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=tiny.sgd(model.parameters()),
        config={
            "train_micro_batch_size_per_gpu": tiny.BATCH // tiny.size,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
            # DeepSpeed's default is 1.
            "gradient_clipping": 0.0,
        },
    )
    for inputs, targets in tiny.training_batches():
        parts = [batch.chunk(tiny.size)[tiny.rank] for batch in (inputs, targets)]
        engine.backward(torch.nn.functional.mse_loss(engine(parts[0]), parts[1]))
        engine.step()
    parameters = list(model.parameters())
    with deepspeed.zero.GatheredParameters(parameters, enabled=stage == 3):
        found = {name: value.detach().clone() for name, value in model.named_parameters()}
    tiny.report(f"zero-{stage}", found, tiny.trained_alone())
dist.destroy_process_group()
