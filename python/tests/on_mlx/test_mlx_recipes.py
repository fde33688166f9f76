"""Recipes of docs/mlx.md on several ranks: generation, drafts, experts, benchmark, training, server."""

import json
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.util import find_spec

import jobs
import pytest

pytestmark = jobs.needs(find_spec("mlx_lm") is not None, "mlx-lm")

RECIPES = jobs.RANKS.parent / "recipes"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Returns a function that gives the folder of a tiny model with random weights."""
    folder = tmp_path_factory.mktemp("models")

    def path(name, dtype="float32"):
        found = folder / f"{name}-{dtype}"
        if not found.exists():
            command = [sys.executable, str(RECIPES / "tiny_models.py"), str(found), name, dtype]
            jobs.finish(command, OFFLINE).expect_success()
        return str(found)

    return path


def mlx_lm(ranks, *arguments, env=None):
    """Runs a program of mlx-lm on several ranks."""
    command = [jobs.tbccl(), "run", "-n", str(ranks), "--", sys.executable, "-m", "tbccl.mlx"]
    return jobs.finish([*command, *arguments], {**OFFLINE, **(env or {})}).expect_success()


def ids(result):
    return [line.removeprefix("@ids ") for line in result.lines("@ids")]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("name", "how"), [("llama", "tensor"), ("qwen", "tensor"), ("qwen", "pipeline")])
def test_generated_tokens_are_those_of_one_process(model, name, how, ranks):
    program = str(RECIPES / "generate.py")
    alone = ids(jobs.finish([sys.executable, program, model(name), "whole"], OFFLINE).expect_success())
    assert len(alone) == 1
    assert ids(mlx_lm(ranks, program, model(name), how)) == alone * ranks


@pytest.mark.parametrize("how", ["tensor", "pipeline"])
def test_groups_of_both_kinds_generate_the_same_tokens(model, how):
    program = str(RECIPES / "generate.py")
    mpi = ids(mlx_lm(2, program, model("qwen"), how, env={"TBCCL_MLX_NATIVE": "off"}))
    assert len(mpi) == 2 and mpi == ids(mlx_lm(2, program, model("qwen"), how))


@pytest.mark.parametrize("how", ["tensor", "pipeline"])
def test_all_ranks_generate_the_same_tokens_in_half_precision(model, how):
    tokens = ids(mlx_lm(2, str(RECIPES / "generate.py"), model("qwen", "bfloat16"), how))
    assert len(tokens) == 2 and tokens[0] == tokens[1], tokens


def test_a_draft_model_leaves_the_tokens_as_they_are(model):
    program, models = str(RECIPES / "speculative.py"), [model("llama"), model("draft")]
    alone = jobs.finish([sys.executable, program, *models, "whole"], OFFLINE).expect_success()
    plain = jobs.finish([sys.executable, str(RECIPES / "generate.py"), models[0], "whole"], OFFLINE)
    assert ids(alone) == ids(plain.expect_success())
    # Some drafted tokens were accepted, and some were not.
    drafted, total = map(int, alone.lines("@drafted")[0].split()[1:])
    assert 0 < drafted < total
    together = mlx_lm(2, program, *models, "tensor")
    assert ids(together) == ids(alone) * 2
    assert together.lines("@drafted") == alone.lines("@drafted") * 2


@pytest.mark.parametrize("ranks", [2, 4])
def test_experts_on_several_ranks_give_the_results_and_gradients_of_one_process(ranks):
    lines = mlx_lm(ranks, str(RECIPES / "experts.py")).lines("@experts")
    assert len(lines) == ranks
    for line in lines:
        _, _, away, worst = line.split()[:4]
        # Tokens have left their rank.
        assert int(away) > 0
        assert float(worst) < 1e-5, line


@pytest.mark.parametrize("options", [[], ["--pipeline"]])
def test_the_benchmark_ends_on_all_ranks(model, options):
    short = ["-p", "32", "-g", "32", "-n", "2"]
    for _ in range(3):
        result = mlx_lm(2, "-m", "mlx_lm", "benchmark", "--model", model("qwen"), *short, *options)
        assert "Averages:" in result.out, result.out


def test_a_low_rank_adapter_is_trained(model, tmp_path):
    generator = random.Random(1)
    for name, lines in [("train", 16), ("valid", 8)]:
        texts = ["".join(generator.choices("abcdefgh ", k=40)) for _ in range(lines)]
        records = [json.dumps({"text": text}) for text in texts]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(records))
    options = {
        "--model": model("qwen"),
        "--data": tmp_path,
        "--adapter-path": tmp_path / "adapters",
        "--iters": 4,
        "--batch-size": 4,
        "--num-layers": 2,
        "--val-batches": 1,
        "--max-seq-length": 64,
    }
    arguments = [str(part) for pair in options.items() for part in pair]
    mlx_lm(2, "-m", "mlx_lm", "lora", "--train", *arguments)
    assert (tmp_path / "adapters" / "adapters.safetensors").exists()


def answer(port, deadline):
    """Returns the server's completion of a prompt, once it serves."""
    body = json.dumps({"prompt": "hello", "max_tokens": 8, "temperature": 0}).encode()
    url = f"http://127.0.0.1:{port}/v1/completions"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.load(response)["choices"][0]["text"]
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_server_on_several_ranks_answers_requests(model, ranks):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [jobs.tbccl(), "run", "-n", str(ranks), "--", sys.executable, "-m", "tbccl.mlx"]
    command += ["-m", "mlx_lm", "server", "--model", model("qwen"), "--port", str(port)]
    environment = jobs.environment(OFFLINE)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as job:
        try:
            answers = [answer(port, time.monotonic() + 60) for _ in range(3)]
        finally:
            job.send_signal(signal.SIGTERM)
            output, _ = job.communicate(timeout=60)
    assert len(answers[0]) > 0 and answers == answers[:1] * 3, (answers, output.decode())
