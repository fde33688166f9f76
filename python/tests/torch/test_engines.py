"""Programs that train with PyTorch, over tbccl: two processes end with the parameters of one."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from jobs import HERE, ROOT, TIMEOUT_SECONDS, JobResult, missing, run

ENGINES = HERE / "engines"


def torchrun(program: str, *arguments: str) -> JobResult:
    """Runs a program of the folder on two processes of torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    return run([*command, *rendezvous, str(ENGINES / program), *arguments], TOKENIZERS_PARALLELISM="false")


@pytest.mark.parametrize(
    ("program", "engines"),
    [
        ("accelerate_ddp.py", ["accelerate"]),
        ("lightning_ddp.py", ["lightning"]),
        ("transformers_trainer.py", ["trainer"]),
        ("deepspeed_zero.py", [f"zero-{stage}" for stage in range(4)]),
    ],
)
def test_an_engine_ends_with_the_parameters_of_one_process(
    program: str, engines: list[str], tmp_path: Path
) -> None:
    result = torchrun(program, str(tmp_path))
    result.expect_success()
    trained = {(rank, engine) for rank, engine, *_ in result.lines("trained")}
    assert trained == {(rank, engine) for rank in "01" for engine in engines}, result.output[-6000:]


def test_ray_train_ends_with_the_parameters_of_one_process() -> None:
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("ip"):
        missing("root and network namespaces: Ray listens on all of a machine's addresses")
    # No process outlives its namespace.
    namespaces = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    loopback = [*namespaces, "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    folder = tempfile.mkdtemp(prefix="ray-")  # Ray's sockets need a short path.
    program = [*loopback, sys.executable, str(ENGINES / "ray_train.py"), folder]
    # Ray writes to the home folder.
    settings = {"HOME": folder, "RAY_USAGE_STATS_ENABLED": "0", "TBCCL_CALIBRATE": "0"}
    try:
        result = run(program, 2 * TIMEOUT_SECONDS, **settings)
    finally:
        shutil.rmtree(folder)
    result.expect_success()
    trained = sorted((rank, engine) for rank, engine, *_ in result.lines("trained"))
    assert trained == [("0", "ray"), ("1", "ray")], result.output[-6000:]


def test_torchft_goes_on_without_a_replica_and_takes_in_a_new_one(tmp_path: Path) -> None:
    program = [sys.executable, str(ENGINES / "torchft_replicas.py"), str(tmp_path)]
    result = run(program, TBCCL_CALIBRATE="0")
    result.expect_success()
    trained = sorted((rank, engine) for rank, engine, *_ in result.lines("trained"))
    assert trained == [("0", "torchft"), ("1", "torchft")], result.output[-6000:]
    # Members of each step that counted: 6 with two replicas, 6 with one, and then with two again.
    assert sorted(result.lines("members")) == [
        ["0", "0", "2" * 6 + "1" * 6 + "2" * 8],
        ["1", "1", "2" * 8],
    ], result.output[-6000:]


def test_tensor_parallel_generation_finds_the_tokens_of_one_process(tmp_path: Path) -> None:
    result = torchrun("transformers_generate.py", str(tmp_path / "model"))
    result.expect_success()
    assert sorted(result.lines("generated")) == [["0", "20"], ["1", "20"]], result.output[-6000:]


def test_the_manifest_for_kubernetes_is_valid_and_its_names_agree() -> None:
    manifest = ROOT / "configs" / "kubernetes" / "training.yaml"
    validate = [sys.executable, "-m", "kubernetes_validate", "--strict", str(manifest)]
    run(validate).expect_success()
    service, job = yaml.safe_load_all(manifest.read_text())
    pod = job["spec"]["template"]["spec"]
    values = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    name = service["metadata"]["name"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(values["WORLD_SIZE"])
    assert pod["subdomain"] == name and service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert values["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{name}"
    assert int(values["MASTER_PORT"]) == service["spec"]["ports"][0]["port"]


def test_the_check_of_manifests_refuses_a_misspelt_field(tmp_path: Path) -> None:
    manifest = (ROOT / "configs" / "kubernetes" / "training.yaml").read_text()
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(manifest.replace("completionMode", "completionsMode"))
    result = run([sys.executable, "-m", "kubernetes_validate", "--strict", str(wrong)])
    assert result.status != 0 and "completionsMode" in result.output, result.output
