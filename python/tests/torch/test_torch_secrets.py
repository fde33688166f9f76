"""Ranks that meet through a store of torch, which others can read and write, on one host and on two."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from jobs import missing, run, tbccl

#: Environment variables of launchers, which ranks of these tests must not inherit.
LAUNCHERS = ("TBCCL_", "OMPI_", "PMI_", "SLURM_", "TORCHELASTIC_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_")

#: Rank of two that meet through a store which the program makes.
OVER_A_STORE = """
import datetime, sys, torch, torch.distributed as dist, tbccl.torch
rank, port = map(int, sys.argv[1:])
limit = datetime.timedelta(seconds=8)
store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, limit, wait_for_workers=False)
try:
    dist.init_process_group("tbccl", store=store, rank=rank, world_size=2, timeout=limit)
    total = torch.ones(1)
    dist.all_reduce(total)
    print("sum", int(total), flush=True)
    dist.destroy_process_group()
except RuntimeError as error:
    print("refused:", error, flush=True)
"""

#: Rank that meets the others as under `tbccl run`.
UNDER_A_LAUNCHER = """
import datetime, torch, torch.distributed as dist, tbccl.torch
dist.init_process_group("tbccl", timeout=datetime.timedelta(seconds=30))
total = torch.ones(1)
dist.all_reduce(total)
print("sum", int(total), flush=True)
"""


def start(command: Sequence[str], **variables: str) -> subprocess.Popen[str]:
    """Starts a program without the variables of other launchers."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return subprocess.Popen(
        list(command),
        env={**inherited, "OMP_NUM_THREADS": "1", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def outputs(ranks: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Returns the output of each rank at its end, which comes within a bounded time."""
    try:
        return [rank.communicate(timeout=100)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def over_a_store(*variables: dict[str, str]) -> list[str]:
    """Runs two ranks with these variables over a store, and returns their outputs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    return outputs(
        [
            start([sys.executable, "-c", OVER_A_STORE, str(rank), port], **more)
            for rank, more in enumerate(variables)
        ]
    )


def test_ranks_with_a_secret_in_common_meet_and_one_without_it_does_not_get_in() -> None:
    secret, other = secrets.token_hex(32), secrets.token_hex(32)
    both = over_a_store({"TBCCL_SECRET": secret}, {"TBCCL_SECRET": secret})
    assert all("sum 2" in output for output in both), both
    # The store gives a stranger all that rank 0 has put there.
    for theirs in ({}, {"TBCCL_SECRET": other}):
        first, stranger = over_a_store({"TBCCL_SECRET": secret}, theirs)
        assert "refused:" in first and "sum" not in first, first
        assert "another secret" in stranger and "sum" not in stranger, stranger
    # Nor does a rank with a secret join a stranger that has put an id of its own into the store.
    stranger, second = over_a_store({}, {"TBCCL_SECRET": secret})
    assert "sum" not in stranger and "another secret" in second, (stranger, second)


def test_ranks_of_one_host_that_met_by_their_user_agree_on_a_secret_for_their_groups() -> None:
    program = f"import os\n{UNDER_A_LAUNCHER}\nprint('secret', os.environ['TBCCL_SECRET'], flush=True)\n"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        root = f"127.0.0.1:{free.getsockname()[1]}"
    size = {"OMPI_COMM_WORLD_SIZE": "2", "TBCCL_ROOT": root}
    ranks = [start([sys.executable, "-c", program], OMPI_COMM_WORLD_RANK=rank, **size) for rank in "01"]
    first, second = outputs(ranks)
    assert "sum 2" in first and "sum 2" in second, (first, second)
    secret = re.search(r"^secret ([0-9a-f]{64})$", first, re.MULTILINE)
    assert secret is not None and secret.group() in second.splitlines(), (first, second)


class Hosts:
    """Two hosts on this machine: network namespaces with a cable, and host names that nobody resolves."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        script = 'echo "$0" >/proc/sys/kernel/hostname && exec sleep 300'
        self.pids = []
        for number in (0, 1):
            name = f"tbccl-test-{os.getpid()}-{number}"
            command = ["unshare", "--net", "--uts", "/bin/sh", "-c", script, name]
            host = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            stack.callback(host.wait)
            stack.callback(host.kill)
            self.pids.append(str(host.pid))
        self._wait_for_namespaces()
        veth = ["link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", self.pids[1]]
        self.ip(0, *veth)
        for number in (0, 1):
            self.ip(number, "link", "set", "lo", "up")
            self.ip(number, "address", "add", f"10.78.0.{number + 1}/24", "dev", "cable")
            self.ip(number, "link", "set", "cable", "up")

    def _wait_for_namespaces(self) -> None:
        until = time.monotonic() + 20
        ours = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "uts")}
        while any(os.readlink(f"/proc/{pid}/ns/{kind}") == ours[kind] for pid in self.pids for kind in ours):
            assert time.monotonic() < until, "no namespaces"
            time.sleep(0.01)

    def within(self, number: int) -> list[str]:
        return ["nsenter", "-t", self.pids[number], "-n", "-u", "--"]

    def ip(self, number: int, *arguments: str) -> None:
        subprocess.run([*self.within(number), "ip", *arguments], check=True)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if sys.platform != "linux" or os.geteuid() != 0:
        missing("network namespaces are for root on Linux")
    programs = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if programs:
        missing(f"{', '.join(programs)} missing; run tools/install-missing test")
    with contextlib.ExitStack() as stack:
        yield Hosts(stack)


def test_ranks_on_two_hosts_find_the_store_of_rank_0(hosts: Hosts, tmp_path: Path) -> None:
    secret = str(tmp_path / "secret")
    listen = ["--secret-file", secret, "--listen", "10.78.0.1:0", "-n", "2"]
    server = start([*hosts.within(0), tbccl(), "rendezvous", *listen])
    try:
        lines = iter(server.stdout.readline, "")
        address = next(line for line in lines if "TBCCL_BOOTSTRAP=" in line).strip().partition("=")[2]
        ranks = []
        for rank in (0, 1):
            variables = {
                "TBCCL_RANK": str(rank),
                "TBCCL_SIZE": "2",
                "TBCCL_BOOTSTRAP": address,
                "TBCCL_SECRET_FILE": secret,
            }
            command = [*hosts.within(rank), sys.executable, "-c", UNDER_A_LAUNCHER]
            ranks.append(start(command, **variables))
        both = outputs(ranks)
    finally:
        server.kill()
        server.wait()
    assert all("sum 2" in output for output in both), both


def test_ranks_of_tbccl_run_have_a_secret_that_strangers_of_the_store_lack() -> None:
    program = (
        "import os, torch, torch.distributed as dist, tbccl.torch\n"
        "assert len(os.environ['TBCCL_SECRET']) == 64\n"
        "dist.init_process_group('tbccl')\n"
        "print('met', dist.get_world_size())\n"
    )
    output = run([tbccl(), "run", "-n", "2", "--", sys.executable, "-c", program]).expect_success()
    assert output.count("met 2") == 2, output


#: Rank 0 shows what the ranks have put into the store of torchrun's agent.
UNDER_TORCHRUN = """
import os, tbccl, torch.distributed as dist
comm = tbccl.init(timeout=60)
if comm.rank == 0:
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    run, restarts = os.environ["TORCHELASTIC_RUN_ID"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    print("stored", store.get(f"tbccl/{run}/{restarts}/rendezvous/0"), flush=True)
comm.barrier()
"""


def test_the_store_of_torchrun_holds_no_secret_where_the_ranks_have_one(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(UNDER_TORCHRUN)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    secret = secrets.token_hex(32)
    stored = {}
    for variables in ({}, {"TBCCL_SECRET": secret}):
        ranks = start([*torchrun, *rendezvous, str(program)], **variables)
        output = outputs([ranks])[0]
        lines = [line for line in output.splitlines() if line.startswith("stored ")]
        assert ranks.returncode == 0 and len(lines) == 1, output
        stored[bool(variables)] = re.findall(r"[0-9a-f]{64}", lines[0])
    assert len(stored[False]) == 1 and not stored[True], stored


def test_ranks_of_mpirun_on_two_hosts_meet_at_the_root_and_find_the_store_of_rank_0(hosts: Hosts) -> None:
    with_secret = {"TBCCL_SECRET": secrets.token_hex(32)}
    ranks = []
    for rank in (0, 1):
        variables = {
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": "2",
            "TBCCL_ROOT": "10.78.0.1:7777",
            **with_secret,
        }
        ranks.append(start([*hosts.within(rank), sys.executable, "-c", UNDER_A_LAUNCHER], **variables))
    both = outputs(ranks)
    assert all("sum 2" in output for output in both), both
