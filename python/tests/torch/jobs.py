"""Helpers that run the programs beside this file as jobs, in bounded time."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
EXAMPLES = ROOT / "python" / "examples"

#: Longer than any job takes on a busy machine.
TIMEOUT_SECONDS = 240


@dataclass(frozen=True)
class JobResult:
    """Exit status and output of a finished job."""

    status: int
    output: str

    def expect_success(self) -> str:
        """Returns the output, after checking that the exit status is 0."""
        assert self.status == 0, f"exit status {self.status}\n{self.output[-6000:]}"
        return self.output

    def lines(self, word: str) -> list[list[str]]:
        """Returns the ranks' lines `@word RANK REST`, each split into at most three fields."""
        lines = [line[line.index(f"@{word} ") :] for line in self.output.splitlines() if f"@{word} " in line]
        return [line.split(" ", 3)[1:] for line in lines]


def missing(what: str) -> None:
    """Skips a test whose requirement is missing; in CI, which sets `TBCCL_TEST_REQUIRE_ALL`, it fails."""
    if os.environ.get("TBCCL_TEST_REQUIRE_ALL") == "1":
        pytest.fail(f"TBCCL_TEST_REQUIRE_ALL=1, and this test cannot run here: {what}")
    pytest.skip(what)


def tbccl() -> str:
    """Returns the path of the command `tbccl`: beside this Python, or in PATH."""
    beside = Path(sys.executable).parent / "tbccl"
    found = os.environ.get("COMMAND_OF_TBCCL") or (str(beside) if beside.exists() else shutil.which("tbccl"))
    if found is None:
        pytest.fail("the command tbccl is not in PATH; set COMMAND_OF_TBCCL to its path")
    return found


@functools.cache
def forkserver() -> tuple[str, ...]:
    """Returns a command like `python` that starts programs with torch already imported."""
    folder = tempfile.mkdtemp(prefix="tbccl-forkserver-")
    socket_path = os.path.join(folder, "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(socket_path)
        listener.listen(64)
        server = subprocess.Popen(
            [sys.executable, str(HERE / "forkserver.py"), "serve", str(listener.fileno())],
            # Children inherit the server's buffering; `run` says why output is buffered.
            env={**{k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}, "OMP_NUM_THREADS": "1"},
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )

    def end() -> None:
        server.stdin.close()
        server.wait(TIMEOUT_SECONDS)
        shutil.rmtree(folder)

    atexit.register(end)
    return sys.executable, "-I", "-S", str(HERE / "forkserver.py"), socket_path


def run(command: Sequence[str], timeout: float = TIMEOUT_SECONDS, **variables: str) -> JobResult:
    """Runs a command to its end; kills its process group after `timeout` seconds."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        if name not in variables:
            environment.pop(name, None)
    # Unbuffered output writes a line and its newline separately, so that lines of several processes mix.
    environment.pop("PYTHONUNBUFFERED", None)
    process = subprocess.Popen(
        list(command),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        pytest.fail(f"{' '.join(command)} was not done within {timeout} s\n{output[-6000:]}")
    return JobResult(process.returncode, output)


def job(
    program: Path | str,
    *arguments: str,
    ranks: int = 2,
    transport: str = "shm",
    without_forkserver: bool = False,
    keep_going: bool = False,
) -> JobResult:
    """Runs a program on `ranks` ranks over a transport; `verbs` selects a software fabric.

    A relative path is relative to this folder. Ranks start through the fork server unless
    `without_forkserver` is set. With `keep_going` the other ranks run on when one fails.
    """
    python = (sys.executable,) if without_forkserver else forkserver()
    program = [*python, str(HERE / program), *arguments]
    limit = ["--timeout", str(TIMEOUT_SECONDS - 20), *(["--keep-going"] if keep_going else [])]
    if transport == "verbs":
        return run([*fabric(ranks), *limit, "--", *program])
    return run([tbccl(), "run", "-n", str(ranks), "--transport", transport, *limit, "--", *program])


def fabric(ranks: int) -> list[str]:
    """Returns the command that starts ranks on a software fabric, each on a node of its own."""
    if sys.platform != "linux":
        pytest.skip("the software RDMA device is for Linux")
    built = ROOT / "target" / "debug" / "tbccl"
    command = os.environ.get("COMMAND_OF_FABRIC") or (str(built) if built.exists() else tbccl())
    kind = {2: "ib-pair", 4: "apple-tb5-mesh4"}[ranks]
    wiring = ROOT / "configs" / "fabrics" / f"{kind}.toml"
    return [command, "fabric", "run", "--fabric", str(wiring), "--transport", "verbs"]
