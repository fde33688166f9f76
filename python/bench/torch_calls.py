"""Benchmark of torch.distributed calls over tbccl and gloo.

    tbccl run -n 2 -- python python/bench/torch_calls.py [--op NAME...] [--most BYTES] [--rounds N]

The length of an all-gather or reduce-scatter is that of the tensor with the blocks of all ranks. Both
backends have a group in the same processes, and alternate over many rounds. Rank 0 prints the median over the
rounds of the mean time of a call, and the median of the rounds' ratios, which a busy machine disturbs less.
Build with `--release` first: times of a debug build are meaningless.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import tbccl.torch  # noqa: F401

BYTES = (4, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 128 << 20)
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")


def seconds_of(call: Callable[[], object], calls: int) -> float:
    """Returns the mean seconds of a call."""
    call()
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begun) / calls


def python_overhead(group: dist.ProcessGroup, calls: int = 2_000) -> float:
    """Returns the seconds of a call of one float in a group of one process: the overhead of Python."""
    tensor = torch.ones(1)
    return min(seconds_of(lambda: dist.all_reduce(tensor, group=group), calls) for _ in range(5))


def ways(group: dist.ProcessGroup, rounds: int, calls: int = 500) -> dict[str, float]:
    """Returns the median over rounds of the seconds of a call of one float, by the way it is made."""
    tensor, operators = torch.ones(1), torch.ops._c10d_functional
    calls_of: dict[str, Callable[[], object]] = {
        "blocking": lambda: dist.all_reduce(tensor, group=group),
        "asynchronous": lambda: dist.all_reduce(tensor, group=group, async_op=True).wait(),
        "functional": lambda: functional.wait_tensor(functional.all_reduce(tensor, "sum", group)),
        "its operator": lambda: operators.wait_tensor(operators.all_reduce(tensor, "sum", group.group_name)),
    }
    times: dict[str, list[float]] = {way: [] for way in calls_of}
    for _ in range(rounds):
        for way, call in calls_of.items():
            dist.barrier(group)
            times[way].append(seconds_of(call, calls))
    return {way: statistics.median(each) for way, each in times.items()}


def call_of(operation: str, length: int) -> Callable[[dist.ProcessGroup], object]:
    """Returns a function that calls an operation in a group."""
    whole = torch.zeros(max(1, length // 4))
    block = torch.zeros(whole.numel() // dist.get_world_size())
    if operation == "all_reduce":
        return lambda group: dist.all_reduce(whole, group=group)
    if operation == "all_gather":
        return lambda group: dist.all_gather_into_tensor(whole, block, group=group)
    return lambda group: dist.reduce_scatter_tensor(block, whole, group=group)


def compare(
    groups: dict[str, dist.ProcessGroup], operation: str, length: int, rounds: int
) -> dict[str, list[float]]:
    """Returns the mean seconds of a call in each round, by backend."""
    calls = max(2, min(200, (4 << 20) // length))
    times: dict[str, list[float]] = {name: [] for name in groups}
    call = call_of(operation, length)
    for turn in range(rounds):
        # The first backend alternates, so that neither profits from the other's cache contents.
        for name in list(groups) if turn % 2 else reversed(list(groups)):
            group = groups[name]
            dist.barrier(group)
            times[name].append(seconds_of(lambda: call(group), calls))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--op", nargs="+", choices=OPERATIONS, default=["all_reduce"], help="operations")
    parser.add_argument("--most", type=int, default=64 << 20, help="the longest tensor, in bytes")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("tbccl")
    groups = {"tbccl": dist.new_group(backend="tbccl"), "gloo": dist.new_group(backend="gloo")}
    alone, _ = dist.new_subgroups(1)
    cost = python_overhead(alone)
    if dist.get_rank() == 0:
        print(f"a call of 1 float in a group of one process: {cost * 1e6:.1f} us")
    for way, seconds in ways(groups["tbccl"], arguments.rounds).items():
        if dist.get_rank() == 0:
            print(f"a call of 1 float in a group of all processes, {way}: {seconds * 1e6:.1f} us")
    for operation in arguments.op:
        if dist.get_rank() == 0:
            print(f"{operation:>14} {'bytes':>10} {'tbccl us':>10} {'gloo us':>10} {'ratio':>7}")
        least = 4 if operation == "all_reduce" else 4 * dist.get_world_size()
        for length in (length for length in BYTES if least <= length <= arguments.most):
            times = compare(groups, operation, length, arguments.rounds)
            ours, theirs = times["tbccl"], times["gloo"]
            ratio = statistics.median(one / other for one, other in zip(ours, theirs))
            if dist.get_rank() == 0:
                own, other = statistics.median(ours) * 1e6, statistics.median(theirs) * 1e6
                print(f"{'':>14} {length:>10} {own:>10.1f} {other:>10.1f} {ratio:>7.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
