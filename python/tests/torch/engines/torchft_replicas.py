"""torchft, whose manager gives a group of tbccl other members when a replica is lost, or comes back.

    python torchft_replicas.py FOLDER

This process runs torchft's lighthouse and starts two replicas. One of them kills itself. When the other one
has gone on alone, and says so by a file, a new process takes the place of the lost one, and gets weights and
step. The replicas share each batch, so that the result is that of one process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

REPLICAS, LOST = 2, 1
#: Steps before which the replica kills itself, and the other one waits for a new process.
LOSS_STEP, RETURN_STEP = 6, 12
LIMIT = timedelta(seconds=90)
#: Milliseconds without a sign of life after which the lighthouse gives a replica up, and that it waits for
#: replicas to come to a quorum.
HEARTBEAT_TIMEOUT, JOIN_TIMEOUT = 1500, 1500


def train(waits: Path, replica: int, is_new: bool) -> None:
    """Trains as one replica, which has one process."""
    import torch
    import torch.distributed as dist
    from torchft import Manager, Optimizer
    from torchft.process_group import ProcessGroupWrapper

    import tbccl.torch
    import tiny

    class ProcessGroupTbccl(ProcessGroupWrapper):
        """A group of tbccl that gets its members from torchft's quorum."""

        def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> dist.ProcessGroup:
            return tbccl.torch.create_process_group(store, rank, world_size, self._timeout)

        def getBackendName(self) -> str:
            return "torchft-tbccl"

    model = tiny.new_model()
    inner = tiny.sgd(model.parameters())

    def state() -> dict[str, object]:
        return {"model": model.state_dict(), "optimizer": inner.state_dict()}

    def load(saved: dict) -> None:
        model.load_state_dict(saved["model"])
        inner.load_state_dict(saved["optimizer"])

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupTbccl(timeout=LIMIT),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=state,
        replica_id=f"replica-{replica}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        hostname="127.0.0.1",
        timeout=LIMIT,
        quorum_timeout=LIMIT,
        connect_timeout=LIMIT,
        use_async_quorum=False,
    )
    optimizer = Optimizer(manager, inner)
    batches = list(tiny.training_batches())
    members: list[int] = []
    deadline = time.monotonic() + LIMIT.total_seconds()
    while manager.current_step() < tiny.STEPS:
        assert time.monotonic() < deadline, f"replica {replica} is at step {manager.current_step()}"
        optimizer.zero_grad()  # asks for a quorum, and may load the state of another replica
        step, size = manager.current_step(), manager.num_participants()
        if size < (1 if LOSS_STEP <= step < RETURN_STEP else REPLICAS):
            if step == RETURN_STEP:
                waits.touch()
            time.sleep(0.2)
            continue
        if replica == LOST and not is_new and step == LOSS_STEP:
            os.kill(os.getpid(), signal.SIGKILL)
        part = manager.participating_rank()
        inputs, targets = (batch.tensor_split(size)[part] for batch in batches[step])
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        manager.allreduce(gradients).wait()  # averages; an error is the manager's, which drops the step
        sizes = [parameter.numel() for parameter in model.parameters()]
        for parameter, gradient in zip(model.parameters(), gradients.split(sizes)):
            parameter.grad.copy_(gradient.view_as(parameter))
        optimizer.step()
        if manager.current_step() > step:
            members.append(size)
    line = tiny.compare("torchft", dict(model.state_dict()), tiny.trained_alone())
    tiny.tell(f"members {replica} {int(is_new)} {''.join(map(str, members))}")
    tiny.tell(line)
    manager.shutdown(wait=False)


def start(folder: str, lighthouse: str, replica: int, is_new: bool) -> subprocess.Popen[bytes]:
    """Starts a replica as a process of its own."""
    variables = {"RANK": str(replica), "WORLD_SIZE": str(REPLICAS), "TORCHFT_LIGHTHOUSE": lighthouse}
    command = [sys.executable, __file__, folder, str(replica), str(int(is_new))]
    return subprocess.Popen(command, env={**os.environ, **variables})


def main() -> int:
    folder = sys.argv[1]
    waits = Path(folder, "waits")
    if len(sys.argv) > 2:
        train(waits, int(sys.argv[2]), sys.argv[3] == "1")
        return 0
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(
        bind="127.0.0.1:0",
        min_replicas=1,
        join_timeout_ms=JOIN_TIMEOUT,
        heartbeat_timeout_ms=HEARTBEAT_TIMEOUT,
    )
    address = f"http://127.0.0.1:{lighthouse.address().rpartition(':')[2]}"
    replicas = [start(folder, address, replica, False) for replica in range(REPLICAS)]
    try:
        deadline = time.monotonic() + LIMIT.total_seconds()
        while not waits.exists() and time.monotonic() < deadline and replicas[0].poll() is None:
            time.sleep(0.1)
        replicas.append(start(folder, address, LOST, True))
        statuses = [process.wait(LIMIT.total_seconds()) for process in replicas]
    finally:
        for process in replicas:
            process.kill()
            process.wait()
        lighthouse.shutdown()
    return 0 if statuses == [0, -signal.SIGKILL, 0] else 1


if __name__ == "__main__":
    sys.exit(main())
