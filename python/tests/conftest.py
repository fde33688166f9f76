"""Helpers that start ranks with `tbccl run`, in bounded time.

The folder `ranks/` holds the programs of the ranks; a test chooses the transport and the number of ranks. A
rank that fails prints the reason, and the launcher then exits with a status other than 0. Most tests check
that status alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import tbccl

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: Generous, because machines that run tests are busy.
TIMEOUT_SECONDS = 120

# Tests leave nothing in the user's cache folder, and don't depend on the machine's calibration.
os.environ["TBCCL_CALIBRATE"] = "0"


@dataclass(frozen=True)
class Transport:
    """A transport, and the launcher's options that select it."""

    name: str
    launcher: tuple[str, ...] = ()

    def command(self, ranks: int) -> list[str]:
        return [tbccl.cli_path(), "run", "-n", str(ranks), "--tag-output", *self.launcher]


SHM = Transport("shm", ("--transport", "shm"))
TCP = Transport("tcp", ("--transport", "tcp"))


def environment(**variables: str) -> dict[str, str]:
    """Returns the environment without variables of other launchers."""
    launcher_prefixes = ("TBCCL_", "OMPI_", "PMI_", "SLURM_", "SOFTRDMA_")
    launcher_names = ("RANK", "WORLD_SIZE")
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(launcher_prefixes) and name not in launcher_names
    }
    settings = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "TBCCL_CALIBRATE": "0"}
    return {**inherited, **settings, **variables}


def wait_for(process: subprocess.Popen[str], limit: float = TIMEOUT_SECONDS) -> tuple[int, str]:
    """Waits for a program that leads a process group; kills the group after `limit` seconds."""
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        pytest.fail(f"not done within {limit} s; output until then:\n{output}")
    return process.returncode, output


def default_signals() -> None:
    """Restores default signal handlers, since background processes of a shell inherit an ignored SIGINT."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)


def start(command: list[str], **variables: str) -> subprocess.Popen[str]:
    """Starts a program as the leader of a process group."""
    return subprocess.Popen(
        command,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=default_signals,
    )


def fabric_command(ranks: int) -> list[str]:
    """Returns the command that starts ranks on a software fabric, each on a node of its own."""
    if sys.platform != "linux":
        pytest.skip("the software device is for Linux")
    # The program of the build folder, not of the wheel: the software device is a library beside it.
    build_dirs = (ROOT / "target" / profile for profile in ("debug", "release"))
    build_dir = next((folder for folder in build_dirs if (folder / "softrdma").exists()), None)
    if build_dir is None:
        pytest.fail("the software device is not built: cargo build -p tbccl-softrdma --lib --bins")
    fabric = ROOT / "configs" / "fabrics" / f"apple-tb5-mesh{ranks}.toml"
    return [str(build_dir / "tbccl"), "fabric", "run", "--fabric", str(fabric), "--transport", "verbs", "--"]


def program(name: str, *arguments: str) -> list[str]:
    """Returns the command of a program in `ranks/`."""
    return [sys.executable, str(HERE / "ranks" / name), *arguments]


def run(transport: Transport, ranks: int, name: str, *arguments: str, **variables: str) -> str:
    """Runs a program of `ranks/`, checks that all ranks exit with 0, and returns their output."""
    command = [*transport.command(ranks), "--", *program(name, *arguments)]
    status, output = wait_for(start(command, **variables))
    assert status == 0, output
    return output
