"""Training that goes on without a rank that is lost, and later with a new process in its place.

    python replaced.py FOLDER

This is the way of torchft: the group leaves its communicator, and its members join again under a new prefix
of the store. This process starts the ranks. One of them kills itself; another process waits to take its
place. The members share each batch, so that the result is that of one process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta

RANKS, LOST = 3, 2
#: Steps before which the rank kills itself, and the new process comes.
LOSS_STEP, RETURN_STEP = 6, 12


def train(store_file: str, attempt: int) -> None:
    """Trains as one rank; a process that comes later begins with a later attempt."""
    import torch
    import torch.distributed as dist

    import tbccl
    import tbccl.torch
    import tiny

    store = dist.FileStore(store_file, -1)

    def meeting(number: int) -> dist.Store:
        return dist.PrefixStore(f"attempt {number}", store)

    model = tiny.new_model()
    optimizer = tiny.sgd(model.parameters())
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    step, batches = 0, list(tiny.training_batches())
    limit = timedelta(seconds=90)
    group = tbccl.torch.create_process_group(meeting(attempt), tiny.rank, RANKS, limit)

    def take_over() -> int:
        """Takes weights, optimizer and step from a rank that has come furthest; returns the step."""
        steps = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
        group.allgather([steps], [torch.tensor([step])]).wait()
        furthest = max(range(group.size()), key=lambda rank: steps[rank].item())
        for parameter in model.parameters():
            for tensor in (parameter.data, optimizer.state[parameter]["momentum_buffer"]):
                group.broadcast(tensor, furthest).wait()
        return steps[furthest].item()

    step = take_over()
    while step < tiny.STEPS:
        if attempt == 1 and step == RETURN_STEP:
            attempt += 1
            group.rejoin(meeting(attempt), tiny.rank, RANKS, limit)
            step = take_over()
        if attempt == 0 and step == LOSS_STEP and tiny.rank == LOST:
            os.kill(os.getpid(), signal.SIGKILL)
        inputs, targets = (batch.tensor_split(group.size())[group.rank()] for batch in batches[step])
        optimizer.zero_grad()
        # Each rank's sum over its samples, as part of the mean over the whole batch.
        ((model(inputs) - targets).square().sum() / batches[step][1].numel()).backward()
        gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        try:
            group.allreduce([gradients]).wait()
        except tbccl.Error as error:
            tiny.tell(f"lost {tiny.rank} {group.size()} {error}")
            attempt += 1
            group.rejoin(meeting(attempt), tiny.rank, RANKS - 1, limit)
            step = take_over()
            continue
        sizes = [parameter.numel() for parameter in model.parameters()]
        for parameter, gradient in zip(model.parameters(), gradients.split(sizes)):
            parameter.grad.copy_(gradient.view_as(parameter))
        optimizer.step()
        step += 1
    group.shutdown()
    tiny.report("replaced", dict(model.state_dict()), tiny.trained_alone())


def start(folder: str, rank: int, attempt: int) -> subprocess.Popen:
    """Starts a rank as a process of its own."""
    program = [sys.executable, __file__, folder, str(attempt)]
    return subprocess.Popen(program, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS)})


def main() -> int:
    folder = sys.argv[1]
    if len(sys.argv) > 2:
        train(os.path.join(folder, "store"), int(sys.argv[2]))
        return 0
    ranks = [start(folder, rank, 0) for rank in range(RANKS)]
    new = start(folder, LOST, 2)
    statuses = [process.wait() for process in (*ranks, new)]
    return 0 if statuses == [0, 0, -signal.SIGKILL, 0] else 1


if __name__ == "__main__":
    sys.exit(main())
