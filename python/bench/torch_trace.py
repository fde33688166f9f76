"""Time line of steps of DistributedDataParallel: what computes, what copies, and what is on the network.

    tbccl run -n 2 -- python python/bench/torch_trace.py ddp [--device cuda] [--batch N] [--steps N]

Each rank writes `ddp-RANK.json`, which Perfetto (ui.perfetto.dev) and chrome://tracing show: the events of
torch's profiler, and the calls, messages and waits of tbccl (docs/trace.md) as a process of their own, on one
clock. The model is that of `torch_ddp.py`. Each rank prints, in milliseconds per step:

    step      the time of a step
    compute   with a kernel on the device, or an operator on the processor, in progress
    comm      with a call of tbccl, or a copy between the device and the host, in progress
    exposed   the part of `comm` in which nothing computes, also as a share of the step
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function
from torch_ddp import BUCKET_MIB, CHANNELS, SIDE, new_model, step, use_device

import tbccl.torch  # noqa: F401

#: Name of a step in the profile.
STEP = "step of the benchmark"
#: Number of tbccl's process in the time line, plus the rank.
PROCESS = 1_000_000

#: Begin and end in microseconds.
Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Returns disjoint intervals that cover what some cover."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def common(left: list[Interval], right: list[Interval]) -> list[Interval]:
    """Returns what two lists of disjoint intervals both cover."""
    both = ((max(a, c), min(b, d)) for a, b in left for c, d in right)
    return [(begin, end) for begin, end in both if begin < end]


def total(intervals: Iterable[Interval]) -> float:
    """Returns the length of disjoint intervals."""
    return sum(end - begin for begin, end in intervals)


def run_steps(device: torch.device, batch: int, steps: int) -> dict[str, Any]:
    """Profiles steps of the model after some for warm-up; returns the profiler's trace."""
    model = DistributedDataParallel(new_model(device), bucket_cap_mb=BUCKET_MIB)
    inputs = torch.randn(batch, CHANNELS, SIDE, SIDE, device=device)
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    for _ in range(3):
        step(model, inputs)
    with profile(activities=activities) as profiler:
        for _ in range(steps):
            with record_function(STEP):
                step(model, inputs)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "profile.json"
        profiler.export_chrome_trace(str(file))
        return json.loads(file.read_text())


def events_of_tbccl(folder: str, profiled: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the events that the communicators of this rank have written, on the profiler's clock."""
    # The profiler's is the time of day since a base, tbccl's the monotonic clock of the host.
    offset = (time.time_ns() - time.monotonic_ns() - profiled.get("baseTimeNanoseconds", 0)) / 1e3
    found = []
    for file in Path(folder).glob("rank-*.json"):
        for event in json.loads(file.read_text())["traceEvents"]:
            if "ts" in event:
                event["ts"] += offset
            found.append({**event, "pid": PROCESS + dist_rank()})
    return found


def dist_rank() -> int:
    """Returns this rank, also after the end of the group."""
    return int(os.environ["RANK"])


def intervals(events: Iterable[dict[str, Any]], *kinds: str) -> list[Interval]:
    """Returns when events of these categories were in progress."""
    chosen = (event for event in events if event.get("ph") == "X" and event.get("cat") in kinds)
    return union((event["ts"], event["ts"] + event["dur"]) for event in chosen)


def summary(own: list[dict[str, Any]], profiled: list[dict[str, Any]], device: torch.device) -> str:
    """Returns the line that a rank prints."""
    steps = union((e["ts"], e["ts"] + e["dur"]) for e in profiled
                  if e.get("name") == STEP and e.get("cat") == "user_annotation")
    # The operators of a call wait for it; they compute nothing.
    operators = [e for e in profiled if not e.get("name", "").startswith(("c10d::", "tbccl:", STEP))]
    compute = common(steps, intervals(operators, "kernel" if device.type == "cuda" else "cpu_op"))
    comm = common(steps, union([*intervals(own, "call"), *intervals(profiled, "gpu_memcpy")]))
    exposed = total(comm) - total(common(comm, compute))
    per_step = [each / len(steps) / 1e3 for each in (total(steps), total(compute), total(comm), exposed)]
    names = zip(("step", "compute", "comm", "exposed"), per_step)
    return ", ".join(f"{name} {each:.2f} ms" for name, each in names) + f" ({exposed / total(steps):.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", help="beginning of the names of the files")
    parser.add_argument("--device", default="cuda", help="type of the device")
    parser.add_argument("--batch", type=int, default=384, help="images of a rank in a step")
    parser.add_argument("--steps", type=int, default=3, help="steps on the time line")
    arguments = parser.parse_args()

    device = use_device(arguments.device)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TBCCL_TRACE"] = folder
        dist.init_process_group("tbccl")
        profiled = run_steps(device, arguments.batch, arguments.steps)
        dist.destroy_process_group()
        own = events_of_tbccl(folder, profiled)
    line = summary(own, profiled["traceEvents"], device)
    print(f"rank {dist_rank()}: {line}", flush=True)
    named = {"ph": "M", "name": "process_name", "pid": PROCESS + dist_rank()}
    profiled["traceEvents"] += [{**named, "args": {"name": f"tbccl, rank {dist_rank()}"}}, *own]
    Path(f"{arguments.output}-{dist_rank()}.json").write_text(json.dumps(profiled))


if __name__ == "__main__":
    main()
