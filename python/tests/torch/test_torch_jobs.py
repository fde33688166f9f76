"""PyTorch programs over tbccl, each run as a job of several processes. The programs contain the checks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from jobs import EXAMPLES, HERE, JobResult, forkserver, job, run, tbccl


TRANSPORTS = ("shm", "tcp", "verbs")


def check_all_ranks_print(result: JobResult, word: str, ranks: int) -> None:
    output = result.expect_success()
    assert output.count(word) == ranks, output[-4000:]


@pytest.mark.parametrize(
    ("ranks", "transport"), [(2, "shm"), (3, "shm"), (4, "shm"), (2, "tcp"), (2, "verbs")]
)
def test_every_operation_is_right(ranks: int, transport: str) -> None:
    result = job("operations.py", ranks=ranks, transport=transport)
    check_all_ranks_print(result, "checks of operations passed", ranks)


@pytest.mark.parametrize(("ranks", "transport"), [(2, "shm"), (4, "shm"), (4, "tcp"), (4, "verbs")])
def test_training_gives_the_parameters_of_one_process(ranks: int, transport: str) -> None:
    result = job("training.py", ranks=ranks, transport=transport)
    check_all_ranks_print(result, "ways of training passed", ranks)


def test_more_groups_than_devices_have_connections_for_go_over_them() -> None:
    result = job("many_groups.py", ranks=4, transport="verbs")
    result.expect_success()
    transports = {rank: names for rank, *names in result.lines("groups")}
    assert transports == {str(rank): ["verbs"] for rank in range(4)}, result.output


#: Failure, number of ranks, rank that dies, and transport, as `failures.py` takes them.
DEATHS = (
    "in_ddp:3:2:shm",
    "in_ddp:2:1:tcp",
    "in_a_blocking_call:2:0:shm",
    "with_calls_in_flight:3:1:shm",
    "in_a_future:2:1:shm",
    "in_a_message:3:2:shm",
    "in_a_group:3:2:shm",
)


def test_a_rank_that_is_killed_is_named_to_the_others_within_3_s(tmp_path: Path) -> None:
    result = run([*forkserver(), str(HERE / "failures.py"), str(tmp_path), *DEATHS])
    assert "@hangs" not in result.expect_success() and "@ended" not in result.output, result.output[-4000:]
    errors, later = result.lines("error"), result.lines("later")
    expected = 0
    for death in DEATHS:
        failure, ranks, dead, _ = death.split(":")
        for rank in {*range(int(ranks))} - {int(dead)}:
            texts = [line[2] for line in errors if line[:2] == [str(rank), failure]]
            expected += 1
            pattern = rf"\brank {dead}\b|ranks are those .*\b{dead}\b"
            assert any(re.search(pattern, text) and float(text.split(" ")[0]) < 3 for text in texts), (
                f"{death}: rank {rank} raised {texts}\n{result.output[-6000:]}"
            )
    assert len(errors) == len(later) == expected, result.output[-4000:]


def test_the_launcher_tells_of_a_rank_that_was_killed(tmp_path: Path) -> None:
    result = job("failures.py", str(tmp_path), "in_ddp", without_forkserver=True)
    assert result.status != 0 and "was killed by SIGKILL" in result.output, result.output[-4000:]


def test_10_000_asynchronous_calls_leave_nothing_behind() -> None:
    check_all_ranks_print(job("endurance.py"), "10000 calls", 2)


def test_torchs_own_tests_pass() -> None:
    output = job("suite.py", ranks=4).expect_success()
    passed, failed, _ = map(int, re.findall(r"(\d+) passed, (\d+) failed, (\d+) skipped", output)[0])
    # The number of tests depends on the version of torch.
    assert failed == 0 and passed >= 80, output[-4000:]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_example_of_ddp_learns(transport: str) -> None:
    options = ("--quantised", "--steps", "20")
    result = job(EXAMPLES / "02_torch_ddp.py", *options, ranks=4, transport=transport)
    output = result.expect_success()
    right = float(re.findall(r"([\d.]+)% of", output)[0])
    assert right > 50, output


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_example_of_fsdp_learns(transport: str) -> None:
    result = job(EXAMPLES / "03_torch_fsdp.py", "--steps", "20", ranks=4, transport=transport)
    output = result.expect_success()
    losses = [float(loss) for loss in re.findall(r"loss(?: is)? ([\d.]+)", output)]
    assert losses[-1] < losses[0] * 0.6, output
    own, everything = map(int, re.findall(r"holds (\d+) of (\d+)", output)[0])
    assert own <= everything / 4 + 1000, output


@pytest.mark.parametrize(("transport", "killed"), [("shm", 2), ("shm", 0), ("tcp", 3), ("verbs", 1)])
def test_the_example_of_a_lost_rank_goes_on_to_the_right_weights(transport: str, killed: int) -> None:
    options = ("--kill", str(killed))
    result = job(EXAMPLES / "08_torch_lost_rank.py", *options, ranks=4, transport=transport, keep_going=True)
    output = result.expect_success()
    assert output.count(f"goes on without rank {killed}") == 3, output
    difference = float(re.findall(r"3 ranks; weights differ .* by ([-\d.e]+)", output)[0])
    assert difference < 1e-4, output


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_example_for_torchrun_under_our_own_launcher(transport: str) -> None:
    result = job(EXAMPLES / "07_torchrun.py", ranks=4, transport=transport)
    assert "4 ranks, of torchrun's run none" in result.expect_success()


def test_the_example_for_torchrun() -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    result = run([*torchrun, *rendezvous, str(EXAMPLES / "07_torchrun.py")])
    assert "2 ranks, of torchrun's run" in result.expect_success()


def test_mpirun_says_who_is_which_rank() -> None:
    """mpirun sets variables of its own for rank and size, and torch's for the address only."""
    program = (
        "import os, subprocess, sys, socket\n"
        "with socket.socket() as free:\n"
        "    free.bind(('127.0.0.1', 0)); port = free.getsockname()[1]\n"
        "ranks = [subprocess.Popen(sys.argv[1:], env={**os.environ, 'OMPI_COMM_WORLD_RANK': str(rank),\n"
        "    'OMPI_COMM_WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(port)})\n"
        "    for rank in range(2)]\n"
        "sys.exit(max(rank.wait() for rank in ranks))\n"
    )
    result = run([sys.executable, "-c", program, *forkserver(), str(EXAMPLES / "07_torchrun.py")])
    assert "2 ranks, of torchrun's run none" in result.expect_success()


def test_a_program_that_cannot_meet_the_others_is_told_why() -> None:
    """The error names the missing variable without a launcher, and otherwise the absent ranks."""
    program = (
        "import torch.distributed as dist, tbccl.torch, datetime\n"
        "def begin(**more):\n"
        "    try:\n"
        "        dist.init_process_group('tbccl', **more)\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, error)\n"
        "begin()\n"
        "begin(init_method='tbccl://')\n"
        "for rank in (0, 1):\n"
        "    limit = datetime.timedelta(seconds=1)\n"
        "    begin(store=dist.HashStore(), rank=rank, world_size=3, timeout=limit)\n"
    )
    output = run([*forkserver(), "-c", program]).expect_success()
    assert "environment variable RANK expected, but not set" in output, output
    assert "tbccl run -n RANKS" in output, output
    assert "ranks 1, 2 did not come to process group" in output, output
    assert "ranks 0, 2 did not come to process group" in output, output


def test_settings_of_a_group() -> None:
    program = (
        "import torch, torch.distributed as dist, tbccl.torch\n"
        "dist.init_process_group('tbccl', pg_options={'ALGO': 'ring'})\n"
        "dist.all_reduce(torch.ones(1000))\n"
        "try:\n"
        "    dist.new_group(pg_options={'ALGORITHM_OF': 'ring'})\n"
        "except RuntimeError as error:\n"
        "    print('refused:', error)\n"
    )
    output = run_program(program)
    assert output.count("refused:") == 2 and "ALGORITHM_OF" in output, output


def test_a_program_may_end_with_calls_in_flight_and_futures_that_nobody_completes() -> None:
    """The thread that completes futures must not be in a call at interpreter exit, which would crash."""
    output = run_program(
        "import time, torch, torch.distributed as dist, tbccl.torch\n"
        "dist.init_process_group('tbccl')\n"
        "group = dist.new_group()\n"
        "dist.all_reduce(torch.ones(1), group=group)\n"
        "if dist.get_rank() == 0:\n"
        "    dist.barrier(group=group, async_op=True).get_future().then(lambda done: print('never'))\n"
        "    time.sleep(0.3)\n"
        "dist.all_reduce(torch.ones(3, 2).t(), async_op=True)\n"
        "print('leaves', flush=True)\n"
    )
    assert output.count("leaves") == 2 and "never" not in output, output


def run_program(text: str) -> str:
    """Runs a program text on two ranks, and returns their output."""
    command = [tbccl(), "run", "-n", "2", "--timeout", "100", "--", *forkserver(), "-c", text]
    return run(command).expect_success()
