"""Tests of the interface of torch's own backends beside operations, and of torchrun jobs that lose a rank."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from jobs import HERE, JobResult, job, run

#: Version of torch: major and minor.
TORCH = tuple(map(int, version("torch").split(".")[:2]))


def check_all_ranks_print(result: JobResult, word: str, ranks: int) -> None:
    output = result.expect_success()
    assert output.count(word) == ranks, output[-4000:]


@pytest.mark.skipif(TORCH < (2, 15), reason="torch has no backends in Python")
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_interface_of_torchs_own_backends(ranks: int) -> None:
    check_all_ranks_print(job("interface.py", ranks=ranks), "checks of the interface passed", ranks)


def test_ddp_trains_in_torchs_detailed_debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    result = job("training.py", "train_ddp", "train_fsdp2", without_forkserver=True)
    check_all_ranks_print(result, "ways of training passed", 2)


def test_torchrun_restarts_after_a_killed_rank_from_a_checkpoint(tmp_path: Path) -> None:
    """The restarted processes meet in new groups, and end with the parameters of one process."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    result = run([*torchrun, *rendezvous, str(HERE / "engines" / "restarted.py"), str(tmp_path)])
    result.expect_success()
    assert sorted(result.lines("restarts")) == [["0", "1", "10"], ["1", "1", "10"]], result.output[-4000:]
    assert {line[0] for line in result.lines("trained")} == {"0", "1"}, result.output[-4000:]


def test_a_training_loses_a_rank_and_takes_in_a_new_one(tmp_path: Path) -> None:
    result = run([sys.executable, str(HERE / "engines" / "replaced.py"), str(tmp_path)])
    result.expect_success()
    assert {line[0] for line in result.lines("trained")} == {"0", "1", "2"}, result.output[-4000:]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_has_completed_its_calls_leaves_without_failing_those_of_others(
    tmp_path: Path, transport: str
) -> None:
    result = job("rejoining.py", str(tmp_path / "store"), ranks=3, transport=transport)
    check_all_ranks_print(result, "@rejoined", 3)
