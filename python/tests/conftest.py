"""How tests start ranks: as people do, by `tbccl run`, with bounded time.

What ranks do is in `ranks/`, a program each; tests say on what they run it. A rank that fails prints why, and the launcher's
status is not 0, which is all that the tests here look at but for what they say themselves.
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
#: Generous: machines that run tests are busy.
LIMIT = 120


@dataclass(frozen=True)
class Where:
    """A way for bytes to travel."""

    name: str
    launcher: tuple[str, ...] = ()

    def command(self, ranks: int) -> list[str]:
        return [tbccl.cli_path(), "run", "-n", str(ranks), "--tag-output", *self.launcher]


SHM = Where("shm", ("--transport", "shm"))
TCP = Where("tcp", ("--transport", "tcp"))


def environment(**more: str) -> dict[str, str]:
    """The environment without what another launcher may have left there."""
    strange = ("TBCCL_", "OMPI_", "PMI_", "SLURM_", "SOFTRDMA_")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(strange) and k not in ("RANK", "WORLD_SIZE")}
    return {**clean, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **more}


def ended(process: subprocess.Popen[str], limit: float = LIMIT) -> tuple[int, str]:
    """Waits for a program that leads a process group, and leaves nothing of it behind."""
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        pytest.fail(f"not done within {limit} s; so far:\n{output}")
    return process.returncode, output


def default_signals() -> None:
    """Restores default signal handlers: a shell has its background processes, and so their children, ignore SIGINT."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)


def start(command: list[str], **more: str) -> subprocess.Popen[str]:
    """Starts a program as the leader of a process group."""
    return subprocess.Popen(
        command,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=default_signals,
    )


def on_fabric(ranks: int) -> list[str]:
    """The command that starts ranks on a fabric of RDMA devices in software, each a machine of its own."""
    if sys.platform != "linux":
        pytest.skip("the software device is for Linux")
    # The program of the tree and not of the wheel: the device is a library beside it.
    here = next((ROOT / "target" / one for one in ("debug", "release") if (ROOT / "target" / one / "softrdma").exists()), None)
    if here is None:
        pytest.fail("the software device is not built: cargo build -p tbccl-softrdma --lib --bins")
    fabric = ROOT / "configs" / "fabrics" / f"apple-tb5-mesh{ranks}.toml"
    return [str(here / "tbccl"), "fabric", "run", "--fabric", str(fabric), "--transport", "verbs", "--"]


def program(name: str, *arguments: str) -> list[str]:
    """A program of `ranks/`, as a command."""
    return [sys.executable, str(HERE / "ranks" / name), *arguments]


def run(where: Where, ranks: int, name: str, *arguments: str, **more: str) -> str:
    """Runs a program of `ranks/` as so many ranks; all must end well. Gives what they printed."""
    status, output = ended(start([*where.command(ranks), "--", *program(name, *arguments)], **more))
    assert status == 0, output
    return output
