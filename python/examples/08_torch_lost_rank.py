"""Data parallel training that loses a rank and goes on without it.

    tbccl run -n 4 --keep-going -- python 08_torch_lost_rank.py --kill 2

Rank 2 is killed in the midst of the training. The other ranks make a communicator without it, agree on the
latest step that any of them has completed, and train on: the ranks that are left share each batch among them.
The weights equal those of a single process, which the first rank trains for comparison at the end.
"""

from __future__ import annotations

import argparse
import io
import os
import signal

import torch
from torch import nn

import tbccl

BATCH, FEATURES, CLASSES = 48, 16, 4


def batch_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the whole batch of a step, the same on all ranks: points around the center of their class."""
    centers = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(100 + step)
    labels = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    return centers[labels] + 0.5 * torch.randn(BATCH, FEATURES, generator=generator), labels


class Training:
    """A model, its optimizer, and the number of steps that are complete."""

    def __init__(self) -> None:
        torch.manual_seed(0)  # The same weights on all ranks.
        self.model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.step = 0

    def run_step(self, comm: tbccl.Communicator | None) -> float:
        """Trains on a batch, of which each rank has a part, and returns the loss.

        Raises:
            tbccl.Error: The ranks could not add up their gradients. The weights are those of before.
        """
        inputs, labels = batch_of(self.step)
        if comm is not None:
            # Parts of any sizes: a batch is not a multiple of every number of ranks.
            inputs, labels = (whole.tensor_split(comm.size)[comm.rank] for whole in (inputs, labels))
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(inputs), labels, reduction="sum") / BATCH
        loss.backward()
        gradients = [weight.grad for weight in self.model.parameters()]
        message = torch.cat([*(gradient.flatten() for gradient in gradients), loss.detach().view(1)])
        if comm is not None:
            comm.all_reduce(message, out=message)
        for gradient, part in zip(gradients, message.split([*(one.numel() for one in gradients), 1])):
            gradient.copy_(part.view_as(gradient))
        self.optimizer.step()
        self.step += 1
        return message[-1].item()

    def catch_up(self, comm: tbccl.Communicator) -> None:
        """Takes over the state of the rank that has completed the most steps.

        A rank may have had its result before another one died, and the others not. So the ranks differ by a
        step.
        """
        steps = comm.all_gather(torch.tensor([self.step])).flatten()
        ahead = int(steps.argmax())
        file = io.BytesIO()
        torch.save((self.model.state_dict(), self.optimizer.state_dict()), file)
        length = comm.broadcast(torch.tensor([file.getbuffer().nbytes]), ahead)
        state = bytearray(file.getvalue()) if comm.rank == ahead else bytearray(length.item())
        comm.broadcast(state, ahead)
        model, optimizer = torch.load(io.BytesIO(state), weights_only=True)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        self.step = int(steps.max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--kill", type=int, metavar="RANK", help="rank that is killed half-way")
    arguments = parser.parse_args()

    comm = tbccl.init()
    victim = comm.rank == arguments.kill
    training = Training()
    while training.step < arguments.steps:
        if victim and training.step == arguments.steps // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            loss = training.run_step(comm)
        except tbccl.PeerDiedError as error:
            print(f"rank {comm.rank} goes on without rank {error.peer}: {error}", flush=True)
            survivors = comm.shrink([error.peer])
            comm.close()
            comm = survivors
            training.catch_up(comm)
            continue
        if comm.rank == 0 and training.step % 10 == 0:
            print(f"step {training.step} on {comm.size} ranks: loss {loss:.4f}", flush=True)
    if comm.rank == 0:
        alone = Training()
        while alone.step < arguments.steps:
            alone.run_step(None)
        weights = zip(training.model.parameters(), alone.model.parameters())
        difference = max((ours - theirs).abs().max().item() for ours, theirs in weights)
        print(f"{comm.size} ranks; weights differ from those of one process by {difference:.1e}", flush=True)
    comm.close()


if __name__ == "__main__":
    main()
