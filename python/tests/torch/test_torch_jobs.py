"""Programs for torch over tbccl, each as a job of several processes. What they check is told in them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from jobs import EXAMPLES, HERE, Ended, job, run, tbccl, warm


TRANSPORTS = ("shm", "tcp", "verbs")


def all_ranks_said(ended: Ended, word: str, ranks: int) -> None:
    said = ended.went_well()
    assert said.count(word) == ranks, said[-4000:]


@pytest.mark.parametrize(("ranks", "transport"), [(2, "shm"), (4, "shm"), (2, "tcp"), (2, "verbs")])
def test_every_operation_is_right(ranks: int, transport: str) -> None:
    all_ranks_said(job("operations.py", ranks=ranks, transport=transport), "checks of operations passed", ranks)


@pytest.mark.parametrize(("ranks", "transport"), [(2, "shm"), (4, "shm"), (4, "tcp"), (4, "verbs")])
def test_training_gives_the_parameters_of_one_process(ranks: int, transport: str) -> None:
    all_ranks_said(job("training.py", ranks=ranks, transport=transport), "ways of training passed", ranks)


def test_groups_for_which_devices_have_no_connections_left_go_another_way() -> None:
    ended = job("many_groups.py", ranks=4, transport="verbs")
    ended.went_well()
    by_device, without = next((int(one), int(other)) for rank, one, other in ended.lines("groups") if rank == "0")
    assert by_device and without, ended.said


#: A way in which a rank dies, how many there are, which of them dies, and what moves the bytes.
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
    ended = run([*warm(), str(HERE / "failures.py"), str(tmp_path), *DEATHS])
    assert "@hangs" not in ended.went_well() and "@ended" not in ended.said, ended.said[-4000:]
    told, later = ended.lines("told"), ended.lines("later")
    expected = 0
    for job in DEATHS:
        way, ranks, dead, _ = job.split(":")
        for rank in {*range(int(ranks))} - {int(dead)}:
            texts = [line[2] for line in told if line[:2] == [str(rank), way]]
            expected += 1
            named = rf"\brank {dead}\b|ranks are those .*\b{dead}\b"
            assert any(re.search(named, text) and float(text.split(" ")[0]) < 3 for text in texts), (
                f"{job}: rank {rank} told {texts}\n{ended.said[-6000:]}"
            )
    assert len(told) == len(later) == expected, ended.said[-4000:]


def test_the_launcher_tells_of_a_rank_that_was_killed(tmp_path: Path) -> None:
    ended = job("failures.py", str(tmp_path), "in_ddp", cold=True)
    assert ended.status != 0 and "was killed by SIGKILL" in ended.said, ended.said[-4000:]


def test_10_000_asynchronous_calls_leave_nothing_behind() -> None:
    all_ranks_said(job("endurance.py"), "10000 calls", 2)


def test_torchs_own_tests_pass() -> None:
    said = job("suite.py", ranks=4).went_well()
    passed, failed, _ = map(int, re.findall(r"(\d+) passed, (\d+) failed, (\d+) skipped", said)[0])
    # Which of them there are depends on the version of torch.
    assert failed == 0 and passed >= 80, said[-4000:]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_example_of_ddp_learns(transport: str) -> None:
    said = job(EXAMPLES / "02_torch_ddp.py", "--quantised", "--steps", "20", ranks=4, transport=transport).went_well()
    right = float(re.findall(r"([\d.]+)% of", said)[0])
    assert right > 50, said


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_example_of_fsdp_learns(transport: str) -> None:
    said = job(EXAMPLES / "03_torch_fsdp.py", "--steps", "20", ranks=4, transport=transport).went_well()
    losses = [float(loss) for loss in re.findall(r"loss(?: is)? ([\d.]+)", said)]
    assert losses[-1] < losses[0] * 0.6, said
    own, everything = map(int, re.findall(r"holds (\d+) of (\d+)", said)[0])
    assert own <= everything / 4 + 1000, said


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_example_for_torchrun_under_our_own_launcher(transport: str) -> None:
    assert "4 ranks, of torchrun's run none" in job(EXAMPLES / "07_torchrun.py", ranks=4, transport=transport).went_well()


def test_the_example_for_torchrun() -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    ended = run([*torchrun, "--rdzv-endpoint", "127.0.0.1:0", str(EXAMPLES / "07_torchrun.py")])
    assert "2 ranks, of torchrun's run" in ended.went_well()


def test_mpirun_says_who_is_which_rank() -> None:
    """As mpirun starts ranks: with its own variables, and torch's for the address alone."""
    program = (
        "import os, subprocess, sys, socket\n"
        "with socket.socket() as free:\n"
        "    free.bind(('127.0.0.1', 0)); port = free.getsockname()[1]\n"
        "ranks = [subprocess.Popen(sys.argv[1:], env={**os.environ, 'OMPI_COMM_WORLD_RANK': str(rank),\n"
        "    'OMPI_COMM_WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(port)}) for rank in range(2)]\n"
        "sys.exit(max(rank.wait() for rank in ranks))\n"
    )
    ended = run([sys.executable, "-c", program, *warm(), str(EXAMPLES / "07_torchrun.py")])
    assert "2 ranks, of torchrun's run none" in ended.went_well()


def test_a_program_that_cannot_meet_the_others_is_told_why() -> None:
    """Without a launcher, which variable is missing; otherwise, which ranks have not come."""
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
    said = run([*warm(), "-c", program]).went_well()
    assert "environment variable RANK expected, but not set" in said, said
    assert "tbccl run -n RANKS" in said, said
    assert "ranks 1, 2 did not come to process group" in said, said
    assert "ranks 0, 2 did not come to process group" in said, said


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
    said = run_program(program)
    assert said.count("refused:") == 2 and "ALGORITHM_OF" in said, said


def test_a_program_may_end_with_calls_in_flight_and_futures_that_nobody_completes() -> None:
    """The thread that completes futures is in no call when the interpreter ends: that would crash it."""
    said = run_program(
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
    assert said.count("leaves") == 2 and "never" not in said, said


def run_program(text: str) -> str:
    """What a program said that is given as a text, on two ranks."""
    return run([tbccl(), "run", "-n", "2", "--timeout", "100", "--", *warm(), "-c", text]).went_well()
