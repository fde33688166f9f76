"""Runs exo's own runners over tbccl: `exo_runners.py SHARDING BACKEND RANKS`.

SHARDING is `tensor` or `pipeline`, BACKEND `ring` or `jaccl`, as in `exo_runners.py tensor ring 2`.

Not a test of `make test`: exo is not on PyPI, and needs Python 3.13 and its own version of mlx-lm. Install
its sources, that mlx-lm and tbccl's wheel into one environment, set TBCCL_MLX=on and, since rank 0 listens at
all addresses of its host, TBCCL_SECRET. With more than three ranks of a ring set TBCCL_ROOT as well.

Starts one process of exo's `worker/runner/bootstrap.py` per rank, as exo's supervisor does, for a tiny llama
with random weights: it joins its group, loads its part, warms up, answers one request, and leaves. Prints the
number of tokens and whether they are those of one process, and ends with status 1 if they are not. exo runs
only its master and its network beside this.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

SHARDINGS = ["tensor", "pipeline"]
BACKENDS = ["ring", "jaccl"]
NAME = "tests/tiny"
TOKENS = 48
#: Seconds for all steps of a run.
TIME_LIMIT_S = 120


def free_ports(count: int) -> list[int]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


def bound_instances(sharding: str, backend: str, ranks: int, layers: int, width: int):
    """Returns what exo's master would send to the worker of each rank."""
    from exo.shared.models.model_cards import ModelCard, ModelId, ModelTask
    from exo.shared.types.backends import Backend
    from exo.shared.types.common import Host, NodeId
    from exo.shared.types.memory import Memory
    from exo.shared.types.worker.instances import BoundInstance, InstanceId, MlxJacclInstance, MlxRingInstance
    from exo.shared.types.worker.runners import RunnerId, ShardAssignments
    from exo.shared.types.worker.shards import PipelineShardMetadata, TensorShardMetadata

    card = ModelCard(
        model_id=ModelId(NAME),
        storage_size=Memory.from_mb(1),
        n_layers=layers,
        hidden_size=width,
        supports_tensor=True,
        tasks=[ModelTask.TextGeneration],
        backends=[Backend.MlxCpu],
    )
    nodes = [NodeId(f"node{rank}") for rank in range(ranks)]
    runners = [RunnerId(f"runner{rank}") for rank in range(ranks)]

    def shard(rank: int):
        common = {"model_card": card, "device_rank": rank, "world_size": ranks, "n_layers": layers}
        if sharding == "tensor":
            return TensorShardMetadata(start_layer=0, end_layer=layers, **common)
        ends = {"start_layer": layers * rank // ranks, "end_layer": layers * (rank + 1) // ranks}
        return PipelineShardMetadata(**ends, **common)

    ports = free_ports(ranks)

    def host(own: int, of: int) -> Host:
        if own == of:
            return Host(ip="0.0.0.0", port=ports[of])
        is_neighbor = (own - of) % ranks in (1, ranks - 1)
        return Host(ip="127.0.0.1", port=ports[of]) if is_neighbor else Host(ip="198.51.100.1", port=0)

    common = {
        "instance_id": InstanceId("instance"),
        "shard_assignments": ShardAssignments(
            model_id=ModelId(NAME),
            node_to_runner=dict(zip(nodes, runners)),
            runner_to_shard={runner: shard(rank) for rank, runner in enumerate(runners)},
        ),
    }
    if backend == "ring":
        hosts = {node: [host(own, of) for of in range(ranks)] for own, node in enumerate(nodes)}
        instance = MlxRingInstance(hosts_by_node=hosts, ephemeral_port=ports[0], **common)
    else:
        devices = [[None if own == of else "rdma_en2" for of in range(ranks)] for own in range(ranks)]
        coordinators = {node: f"127.0.0.1:{ports[0]}" for node in nodes} | {nodes[0]: f"0.0.0.0:{ports[0]}"}
        instance = MlxJacclInstance(jaccl_devices=devices, jaccl_coordinators=coordinators, **common)
    return [
        BoundInstance(instance=instance, bound_runner_id=runner, bound_node_id=node)
        for runner, node in zip(runners, nodes)
    ]


def tasks_of(ranks: int):
    """Returns the tasks that exo gives to the runners of an instance, in order."""
    from exo.shared.models.model_cards import ModelId
    from exo.shared.types.common import CommandId
    from exo.shared.types.tasks import ConnectToGroup, LoadModel, StartWarmup, TextGeneration
    from exo.shared.types.text_generation import InputMessage, InputMessageContent, TextGenerationTaskParams
    from exo.shared.types.worker.instances import InstanceId

    instance = {"instance_id": InstanceId("instance")}
    request = TextGenerationTaskParams(
        model=ModelId(NAME),
        input=[InputMessage(role="user", content=InputMessageContent("once upon a time"))],
        stream=True,
        max_output_tokens=TOKENS,
        temperature=0.0,
    )
    answer = TextGeneration(command_id=CommandId("request"), task_params=request, **instance)
    connect = [ConnectToGroup(**instance)] if ranks > 1 else []
    return [*connect, LoadModel(**instance), StartWarmup(**instance), answer]


def generate(sharding: str, backend: str, ranks: int, shape: dict) -> list[int]:
    """Runs the runners to their ends, and returns the tokens of rank 0."""
    import loguru
    from exo.shared.types.events import ChunkGenerated, TaskStatusUpdated
    from exo.shared.types.tasks import Shutdown
    from exo.shared.types.worker.instances import InstanceId
    from exo.utils.channels import mp_channel
    from exo.worker.runner.bootstrap import RunnerTerminationError, entrypoint

    # A sink of a terminal cannot go to another process.
    loguru.logger.remove()
    layers, width = shape["num_hidden_layers"], shape["hidden_size"]
    runners, kept = [], []
    for bound in bound_instances(sharding, backend, ranks, layers, width):
        (send_event, events), (tasks, take_task), (cancel, cancelled) = (mp_channel() for _ in range(3))
        args = (bound, send_event, take_task, cancelled, loguru.logger)
        process = multiprocessing.Process(target=entrypoint, args=args, daemon=True)
        process.start()
        runners.append((process, events, tasks, bound.bound_runner_id))
        kept.append((*args, cancel))
    end = time.monotonic() + TIME_LIMIT_S
    tokens: list[int] = []
    for task in tasks_of(ranks):
        for _, _, tasks, _ in runners:
            tasks.send(task)
        for rank, (process, events, _, _) in enumerate(runners):
            is_done = False
            while not is_done:
                arrived = events.collect()
                if not arrived:
                    if time.monotonic() > end or not process.is_alive():
                        sys.exit(f"rank {rank} does not end {type(task).__name__}")
                    time.sleep(0.01)
                for event in arrived:
                    if isinstance(event, RunnerTerminationError):
                        sys.exit(f"rank {rank}: {event}")
                    if rank == 0 and isinstance(event, ChunkGenerated) and hasattr(event.chunk, "token_id"):
                        tokens.append(event.chunk.token_id)
                    is_done |= (
                        isinstance(event, TaskStatusUpdated)
                        and event.task_id == task.task_id
                        and event.task_status.value == "Complete"
                    )
    for _, _, tasks, runner in runners:
        tasks.send(Shutdown(instance_id=InstanceId("instance"), runner_id=runner))
    for rank, (process, *_) in enumerate(runners):
        process.join(30)
        if process.exitcode != 0:
            sys.exit(f"rank {rank} ended with {process.exitcode}")
    return tokens


def main() -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("sharding", choices=SHARDINGS)
    parser.add_argument("backend", choices=BACKENDS)
    parser.add_argument("ranks", type=int)
    args = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    sys.path.insert(0, str(Path(__file__).parent / "recipes"))
    from tiny_models import SHAPE, write_model

    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(EXO_DEFAULT_MODELS_DIR=folder, EXO_DASHBOARD_DIR=folder, EXO_TESTS="1")
        write_model(Path(folder) / NAME.replace("/", "--"), "llama")
        alone = generate(args.sharding, args.backend, 1, SHAPE)
        together = generate(args.sharding, args.backend, args.ranks, SHAPE)
    same = "those of one process" if together == alone else "others than in one process"
    print(f"{args.sharding}, {args.backend}, {args.ranks} ranks: {len(together)} tokens, {same}")
    return int(together != alone)


if __name__ == "__main__":
    sys.exit(main())
