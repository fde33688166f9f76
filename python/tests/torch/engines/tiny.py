"""The model, the batches and the result of one process that the programs of this folder share.

The programs are started as scripts, so that their own folder is the first one of the path.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from training import (  # noqa: E402, F401
    BATCH,
    STEPS,
    TOLERANCE,
    Model,
    adam,
    max_difference,
    new_model,
    sgd,
    trained_alone,
    training_batches,
)

torch.set_num_threads(1)
rank, size = (
    int(os.environ.get(torchrun) or os.environ[slurm])
    for torchrun, slurm in (("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_NTASKS"))
)


def samples() -> torch.utils.data.TensorDataset:
    """Returns the samples of all batches, in their order."""
    inputs, targets = zip(*training_batches())
    return torch.utils.data.TensorDataset(torch.cat(inputs), torch.cat(targets))


def tell(text: str) -> None:
    """Prints a line of its own for the tests, in one write: engines change buffering and print progress."""
    os.write(1, f"\n@{text}\n".encode())


def compare(engine: str, found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> str:
    """Checks parameters against those of one process, and returns a line that the tests look for."""
    difference = max_difference(found, expected)
    assert difference <= TOLERANCE, f"{engine}, rank {rank}: parameters differ by {difference}"
    return f"trained {rank} {engine} {difference:.1e}"


def report(engine: str, found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Checks parameters against those of one process, and prints a line that the tests look for."""
    tell(compare(engine, found, expected))
