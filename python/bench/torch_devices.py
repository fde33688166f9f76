"""Benchmark of all_reduce on tensors of a device, beside its parts and beside gloo.

    tbccl run -n 2 -- python python/bench/torch_devices.py [--device cuda] [--pieces MIB...] [--rounds N]

Ranks share the devices of a machine that has fewer than ranks. With `--one-rank`, rank 0 has the device for
itself: the others take part in its calls with tensors in host memory, in the same pieces. The columns are
medians of the rounds, in microseconds:

    copy      the tensor from the device to pinned host memory and another one back, at the same time
    network   all_reduce of a tensor in pinned host memory over tbccl
    N MiB     all_reduce of a tensor on the device over tbccl, in pieces of N MiB
    gloo      the same over gloo, where it serves the device
    ratio     the best of tbccl's, as a multiple of the slower of copy and network
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

import tbccl.torch  # noqa: F401
from tbccl.torch import pieces

BYTES = tuple(1 << shift for shift in (2, 10, 14, 16, 18, 20, 22, 24, 26, 28))


def reduce_pieces(on_host: torch.Tensor) -> None:
    """Takes part in an all_reduce of another rank's tensor on a device, whose pieces it knows."""
    room = pieces.PIECE_BYTES // on_host.element_size()
    for piece in on_host.split(max(1, room // pieces.ALIGNMENT) * pieces.ALIGNMENT):
        dist.all_reduce(piece)


class Copies:
    """Copies of a tensor's length from and to the device, at the same time."""

    def __init__(self, length: int, device: torch.device) -> None:
        self._on_device = [torch.zeros(length, dtype=torch.uint8, device=device) for _ in range(2)]
        self._on_host = [torch.zeros(length, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._streams = [torch.Stream(device=device) for _ in range(2)]

    def run(self) -> None:
        """Copies, and waits for both streams."""
        with self._streams[0]:
            self._on_host[0].copy_(self._on_device[0], non_blocking=True)
        with self._streams[1]:
            self._on_device[1].copy_(self._on_host[1], non_blocking=True)
        for stream in self._streams:
            stream.synchronize()


def calls_of(
    length: int, device: torch.device | None, piece_mib: list[float], other: dist.ProcessGroup | None
) -> dict[str, Callable[[], None]]:
    """Returns what is measured for a length, by the names of the columns.

    Without a device, the rank takes part in the calls of another one.
    """
    on_device = None if device is None else torch.zeros(length // 4, device=device)
    on_host = torch.zeros(length // 4, pin_memory=device is not None)

    def reduced_in(mib: float) -> Callable[[], None]:
        def call() -> None:
            pieces.PIECE_BYTES = int(mib * (1 << 20))
            if on_device is None:
                reduce_pieces(on_host)
            else:
                dist.all_reduce(on_device)
                torch.accelerator.synchronize()

        return call

    def reduced_by_other() -> None:
        dist.all_reduce(on_device, group=other)
        torch.accelerator.synchronize()

    # Pieces that are longer than the tensor all do the same.
    useful = [mib for mib in piece_mib if mib == piece_mib[0] or mib * (1 << 19) < length]
    return {
        "copy": (lambda: None) if device is None else Copies(length, device).run,
        "network": lambda: dist.all_reduce(on_host),
        **{f"{mib:g} MiB": reduced_in(mib) for mib in useful},
        **({} if other is None else {"gloo": reduced_by_other}),
    }


def measure(calls: dict[str, Callable[[], None]], length: int, rounds: int) -> dict[str, float]:
    """Returns the median microseconds of each call, over rounds that alternate."""
    count = max(3, min(100, (16 << 20) // length))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            dist.barrier()
            call()
            begun = time.perf_counter()
            for _ in range(count):
                call()
            times[name].append((time.perf_counter() - begun) / count * 1e6)
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda", help="type of the device")
    parser.add_argument("--pieces", type=float, nargs="+", default=[1, 2, 4, 8], metavar="MIB")
    parser.add_argument("--least", type=int, default=BYTES[0], help="shortest tensor in bytes")
    parser.add_argument("--most", type=int, default=BYTES[-1], help="longest tensor in bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one-rank", action="store_true", help="leave the device to rank 0")
    parser.add_argument("--without-gloo", action="store_true", help="measure tbccl alone")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    module = torch.get_device_module(arguments.device)
    device = torch.device(arguments.device, int(os.environ["LOCAL_RANK"]) % module.device_count())
    module.set_device(device)
    dist.init_process_group("tbccl")
    if arguments.one_rank and dist.get_rank() > 0:
        device = None
    is_served_by_gloo = arguments.device in dist.Backend.backend_capability[dist.Backend.GLOO]
    is_alone = arguments.without_gloo or arguments.one_rank or not is_served_by_gloo
    other = None if is_alone else dist.new_group(backend="gloo")
    columns = ["copy", "network", *(f"{mib:g} MiB" for mib in arguments.pieces), "gloo", "ratio"]
    if dist.get_rank() == 0:
        print(f"{'bytes':>10}" + "".join(f"{name:>10}" for name in columns), flush=True)
    for length in (length for length in BYTES if arguments.least <= length <= arguments.most):
        found = measure(calls_of(length, device, arguments.pieces, other), length, arguments.rounds)
        ours = min(value for name, value in found.items() if name.endswith("MiB"))
        found["ratio"] = ours / max(found["copy"], found["network"])
        texts = (f"{found[name]:.2f}" if name == "ratio" else f"{found[name]:.1f}" if name in found else ""
                 for name in columns)
        if dist.get_rank() == 0:
            print(f"{length:>10}" + "".join(f"{text:>10}" for text in texts), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
