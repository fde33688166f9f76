"""Runs each recipe of docs/mlx.md many times: `endurance.py [--rounds 100] [--only NAME ...]`.

Not a test of `make test`, since 100 rounds take an hour or more. Prints runs, failures and hangs of each
recipe, and ends with status 1 if there was a failure or a hang. `tools/test-python` has prepared the
environment: PATH=target/venv/mlx/bin:$PATH python python/tests/on_mlx/endurance.py
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import jobs
import test_mlx_recipes as recipes

PROGRAMS = recipes.RECIPES
#: Columns of the table, with their widths.
COLUMNS = [("runs", 6), ("failures", 10), ("hangs", 7)]


class Folder:
    """Models and texts that all runs share."""

    def __init__(self, path: Path):
        self.path = path
        generator = random.Random(1)
        for name, lines in [("train", 16), ("valid", 8)]:
            texts = ["".join(generator.choices("abcdefgh ", k=40)) for _ in range(lines)]
            records = [json.dumps({"text": text}) for text in texts]
            (path / f"{name}.jsonl").write_text("\n".join(records))

    @functools.cache
    def model(self, name: str) -> str:
        path = self.path / name
        command = [sys.executable, str(PROGRAMS / "tiny_models.py"), str(path), name, "float32"]
        jobs.finish(command, recipes.OFFLINE).expect_success()
        return str(path)

    @functools.cache
    def tokens(self) -> list[str]:
        """Returns the tokens of the llama in one process."""
        command = [sys.executable, str(PROGRAMS / "generate.py"), self.model("llama"), "whole"]
        return recipes.ids(jobs.finish(command, recipes.OFFLINE).expect_success())


def generate(folder: Folder) -> None:
    result = recipes.mlx_lm(2, str(PROGRAMS / "generate.py"), folder.model("llama"), "tensor")
    assert recipes.ids(result) == folder.tokens() * 2


def draft(folder: Folder) -> None:
    models = [folder.model("llama"), folder.model("draft")]
    result = recipes.mlx_lm(2, str(PROGRAMS / "speculative.py"), *models, "tensor")
    assert recipes.ids(result) == folder.tokens() * 2


def experts(_folder: Folder) -> None:
    lines = recipes.mlx_lm(2, str(PROGRAMS / "experts.py")).lines("@experts")
    assert len(lines) == 2 and all(float(line.split()[3]) < 1e-5 for line in lines), lines


def benchmark(folder: Folder, *options: str) -> None:
    short = ["-p", "32", "-g", "32", "-n", "2"]
    arguments = ["-m", "mlx_lm", "benchmark", "--model", folder.model("qwen"), *short, *options]
    assert "Averages:" in recipes.mlx_lm(2, *arguments).out


def pipeline(folder: Folder) -> None:
    benchmark(folder, "--pipeline")


def lora(folder: Folder) -> None:
    options = ["--data", str(folder.path), "--adapter-path", str(folder.path / "adapters")]
    options += ["--iters", "4", "--batch-size", "4", "--num-layers", "2", "--val-batches", "1"]
    model = ["--model", folder.model("qwen"), "--max-seq-length", "64"]
    recipes.mlx_lm(2, "-m", "mlx_lm", "lora", "--train", *model, *options)


def sharded(_folder: Folder) -> None:
    env = {"INSTALL": "1"}
    result = jobs.run(2, jobs.RANKS / "installed.py", "trains_fully_sharded", env=env).expect_success()
    assert len(result.lines("@right")) == 2


def server(folder: Folder) -> None:
    recipes.test_a_server_on_several_ranks_answers_requests(folder.model, 2)


RECIPES: dict[str, Callable[[Folder], None]] = {
    function.__name__: function
    for function in (generate, draft, experts, benchmark, pipeline, lora, sharded, server)
}


def main() -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--only", nargs="+", choices=RECIPES, default=list(RECIPES))
    args = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(Path(path))
        for turn in range(args.rounds):
            for name in args.only:
                counts[name, "runs"] += 1
                try:
                    RECIPES[name](folder)
                except Exception as error:  # A failed run is counted, and the next one begins.
                    is_hang = "not done within" in str(error)
                    counts[name, "hangs" if is_hang else "failures"] += 1
                    print(f"round {turn + 1}, {name}: {error}", file=sys.stderr, flush=True)
            print(f"round {turn + 1} of {args.rounds}: {time.monotonic() - began:.0f} s", flush=True)
    print(f"{'recipe':<12}{'runs':>6}{'failures':>10}{'hangs':>7}")
    for name in args.only:
        print(f"{name:<12}" + "".join(f"{counts[name, what]:>{width}}" for what, width in COLUMNS))
    return int(any(counts[name, what] for name in args.only for what in ("failures", "hangs")))


if __name__ == "__main__":
    sys.exit(main())
