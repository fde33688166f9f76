"""Runs MLX's own distributed tests over tbccl: `upstream.py SOURCE [--ranks N ...] [--over shm tcp verbs]`.

SOURCE is the folder of MLX's sources, of the version that is installed. Not a test of `make test`, which has
no sources of MLX. The files for MLX's backends `mpi` and `nccl` run, with groups of both kinds. Over `verbs`
the ranks lie on the nodes of a fabric of software RDMA devices, two on each node with 8 ranks.

Some tests of MLX require 8 ranks; with another number they fail, and are counted apart. Ends with status 1 if
any other test fails. `tools/test-python` has prepared the environment:
PATH=target/venv/mlx/bin:$PATH python python/tests/on_mlx/upstream.py SOURCE
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import jobs

#: Nodes of the fabric and ranks on each, by the number of ranks.
NODES = {2: (2, 1), 4: (4, 1), 8: (4, 2)}
#: Variables that select the kind of groups.
KINDS = {"native": {}, "mpi": {"TBCCL_MLX_NATIVE": "off"}}
FILES = ["mpi_test_distributed.py", "nccl_test_distributed.py"]
#: Tests of MLX that require 8 ranks. The last two do in MLX 0.31, the very last because `sum_scatter` made of
#: messages takes more memory than it allows 2 ranks.
OF_EIGHT = {"test_groups", "test_mixed", "test_fsdp_ddp_apply_gradients", "test_fsdp_peak_memory"}
OUTCOMES = ["ok", "skipped", "needs 8 ranks", "failed"]


def launcher(ranks: int, transport: str) -> list[str]:
    """Returns the command that starts the ranks of a program."""
    if transport != "verbs":
        return [jobs.tbccl(), "run", "-n", str(ranks), "--transport", transport, "--"]
    nodes, per_node = NODES[ranks]
    fabric = jobs.ROOT / "configs" / "fabrics" / f"apple-tb5-mesh{nodes}.toml"
    # Ranks of one node have no cable between them.
    chosen = "verbs" if per_node == 1 else "shm+verbs"
    command = [jobs.ROOT / "target" / "debug" / "tbccl", "fabric", "run", "--fabric", fabric]
    return [*map(str, command), "--per-node", str(per_node), "--transport", chosen, "--"]


def run(source: Path, file: str, ranks: int, transport: str, kind: str) -> Counter[str]:
    """Runs a file of tests on all ranks, prints what fails, and counts outcomes over the ranks."""
    python = [sys.executable, "-m", "tbccl.mlx", str(jobs.RANKS / "upstream.py")]
    command = [*launcher(ranks, transport), *python, str(source / "python" / "tests" / file)]
    result = jobs.finish(command, KINDS[kind], timeout=900)
    counts: Counter[str] = Counter()
    for line in result.lines("@test"):
        _, test, outcome, *reason = line.split(" ", 3)
        if outcome == "failed" and ranks != 8 and test in OF_EIGHT:
            outcome = "needs 8 ranks"
        if outcome == "failed":
            print(f"    {file}, {ranks} ranks over {transport}, {kind}: {test}: {reason}", flush=True)
        counts[outcome] += 1
    if result.code != 0:
        counts["failed"] += 1
        print(f"    status {result.code}: {result.err[-2000:]}", flush=True)
    return counts


def main() -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", choices=NODES, default=list(NODES))
    parser.add_argument("--over", nargs="+", choices=["shm", "tcp", "verbs"], default=["shm", "tcp", "verbs"])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    args = parser.parse_args()
    failed = 0
    print(f"{'file':<26}{'over':<7}{'ranks':>6}  {'kind':<8}" + "".join(f"{name:>15}" for name in OUTCOMES))
    tests = args.source / "python" / "tests"
    # Earlier versions lack the second one.
    for file in filter(lambda name: (tests / name).exists(), FILES):
        for transport in args.over:
            for ranks in args.ranks:
                for kind in args.kinds:
                    counts = run(args.source, file, ranks, transport, kind)
                    row = f"{file:<26}{transport:<7}{ranks:>6}  {kind:<8}"
                    print(row + "".join(f"{counts[name]:>15}" for name in OUTCOMES), flush=True)
                    failed += counts["failed"]
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
