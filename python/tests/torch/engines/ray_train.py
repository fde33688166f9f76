"""Ray Train, whose configuration for torch takes the name of the backend.

    python ray_train.py FOLDER

Starts a cluster on this machine, with its files in the folder, and ends it. The workers have a secret in a
file. Each leaves its line for the tests in a file, since Ray forwards output late, or not at all.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import ray
import ray.train
import ray.train.torch

WORKERS = 2


def train(settings: dict[str, str]) -> None:
    """Trains in one worker, and compares the parameters with those of one process."""
    import torch
    import torch.distributed as dist

    import tiny

    assert dist.get_backend() == "tbccl"
    assert os.environ["TBCCL_SECRET_FILE"] == settings["secret"]
    model = ray.train.torch.prepare_model(tiny.new_model())
    optimizer = tiny.sgd(model.parameters())
    for inputs, targets in tiny.training_batches():
        parts = (batch.chunk(tiny.size)[tiny.rank] for batch in (inputs, targets))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(next(parts)), next(parts)).backward()
        optimizer.step()
    line = tiny.compare("ray", dict(model.module.state_dict()), tiny.trained_alone())
    Path(settings["folder"], f"rank-{tiny.rank}").write_text(line)


def main(folder: str) -> None:
    secret = Path(folder, "secret")
    secret.touch(mode=0o600)
    secret.write_text(secrets.token_hex(32))
    ray.init(
        runtime_env={"env_vars": {"TBCCL_SECRET_FILE": str(secret)}},
        num_cpus=WORKERS,
        include_dashboard=False,
        object_store_memory=100 << 20,
        _node_ip_address="127.0.0.1",
        _temp_dir=os.path.join(folder, "ray"),
    )
    try:
        trainer = ray.train.torch.TorchTrainer(
            train,
            train_loop_config={"folder": folder, "secret": str(secret)},
            torch_config=ray.train.torch.TorchConfig(backend="tbccl"),
            scaling_config=ray.train.ScalingConfig(num_workers=WORKERS),
            run_config=ray.train.RunConfig(name="tbccl", storage_path=os.path.join(folder, "results")),
        )
        trainer.fit()
    finally:
        ray.shutdown()
    for rank in range(WORKERS):
        print(f"\n@{Path(folder, f'rank-{rank}').read_text()}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
