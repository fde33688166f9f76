"""Tasks of Slurm's `srun`, on one node and on two."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator

import pytest
from jobs import HERE, JobResult, missing
from slurm import NODES, Cluster, free_ports, missing_requirement

TRAINING = [sys.executable, str(HERE / "engines" / "slurm_ddp.py")]

#: Command that gives a task a host name of its own, which nobody resolves.
ON_A_HOST_OF_ITS_OWN = (
    "unshare",
    "--uts",
    "sh",
    "-c",
    'echo "host-$SLURM_PROCID" >/proc/sys/kernel/hostname && exec "$@"',
    "sh",
)

#: Program of a task that joins the job of its step several times, one after the other.
JOINING = """
import numpy, os, sys, tbccl
for attempt in range(int(sys.argv[1])):
    with tbccl.init() as comm:
        total = comm.all_reduce(numpy.array([comm.rank + 1.0]))
        os.write(1, f"@sum {comm.rank} {int(total[0])} {attempt}\\n".encode())
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    what = missing_requirement()
    if what is not None:
        missing(what)
    with Cluster(tmp_path_factory.mktemp("slurm")) as started:
        yield started


def expect_training(result: JobResult) -> None:
    result.expect_success()
    trained = sorted((rank, engine) for rank, engine, *_ in result.lines("trained"))
    assert trained == [("0", "srun"), ("1", "srun")], result.output[-6000:]


def expect_sums(result: JobResult, attempts: int) -> None:
    result.expect_success()
    expected = [[rank, "3", str(attempt)] for rank in "01" for attempt in range(attempts)]
    assert sorted(result.lines("sum")) == expected, result.output[-6000:]


def test_tasks_of_one_node_train_without_any_further_variable(cluster: Cluster) -> None:
    expect_training(cluster.run(["srun", "-N", "1", "-n", "2", *TRAINING]))


def test_tasks_of_two_nodes_train_with_a_secret_in_common(cluster: Cluster) -> None:
    secret = secrets.token_hex(32)
    command = ["srun", "-N", "2", "-n", "2", *ON_A_HOST_OF_ITS_OWN, *TRAINING]
    result = cluster.run(command, TBCCL_SECRET=secret)
    expect_training(result)
    assert secret not in result.output


def test_tasks_with_the_address_of_a_store_train_as_with_other_backends(cluster: Cluster) -> None:
    address = {"MASTER_ADDR": NODES[0], "MASTER_PORT": str(free_ports(1)[0])}
    expect_training(cluster.run(["srun", "-N", "2", "-n", "2", *TRAINING], **address))


@pytest.mark.parametrize("mpi", ["none", "pmi2"])
def test_a_program_without_torch_joins_its_job_again_and_again(cluster: Cluster, mpi: str) -> None:
    command = ["srun", "-N", "1", "-n", "2", f"--mpi={mpi}", sys.executable, "-c", JOINING, "3"]
    expect_sums(cluster.run(command), 3)


def test_a_program_without_torch_joins_its_job_on_two_nodes(cluster: Cluster) -> None:
    command = ["srun", "-N", "2", "-n", "2", sys.executable, "-c", JOINING, "1"]
    expect_sums(cluster.run(command, TBCCL_SECRET=secrets.token_hex(32)), 1)


def test_tasks_of_two_nodes_without_a_secret_are_told_to_set_one(cluster: Cluster) -> None:
    command = ["srun", "-N", "2", "-n", "2", sys.executable, "-c", JOINING, "1"]
    # The nodes are loopback addresses, at which ranks need none.
    result = cluster.run(command, MASTER_ADDR="first-node.invalid")
    assert result.status != 0 and result.output.count("TBCCL_SECRET is not set") == 2, result.output
    assert "srun passes its own environment on" in result.output, result.output


def test_the_death_of_a_task_is_told_to_the_other_one(cluster: Cluster) -> None:
    program = "\n".join(
        [
            "import os, signal, numpy, tbccl",
            "comm = tbccl.init()",
            "comm.rank == 1 and os.kill(os.getpid(), signal.SIGKILL)",
            "comm.all_reduce(numpy.ones(1))",
        ]
    )
    result = cluster.run(["srun", "-N", "1", "-n", "2", sys.executable, "-c", program])
    assert result.status != 0, result.output
    assert "PeerDiedError" in result.output and "rank 1" in result.output, result.output


def test_a_batch_script_that_starts_a_rank_without_srun_is_told_the_remedy(cluster: Cluster) -> None:
    script = f'#!/bin/sh\nexec {sys.executable} -c "import tbccl; tbccl.init()"\n'
    path = cluster.folder / "script"
    path.write_text(script)
    log = cluster.folder / "script.out"
    result = cluster.run(["sbatch", "--wait", "-N", "1", "-n", "2", "-o", str(log), str(path)])
    assert result.status != 0, result.output
    assert "batch script of a Slurm job with 2 tasks" in log.read_text(), log.read_text()

