"""Starts the programs beside this file as jobs, and ends them."""

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
PATIENCE = 240


@dataclass(frozen=True)
class Ended:
    """A job that has ended."""

    status: int
    said: str

    def went_well(self) -> str:
        """What it said. Fails if it did not end well."""
        assert self.status == 0, f"exit status {self.status}\n{self.said[-6000:]}"
        return self.said

    def lines(self, word: str) -> list[list[str]]:
        """What ranks said under a word, as `@word RANK REST`."""
        told = [line[line.index(f"@{word} ") :] for line in self.said.splitlines() if f"@{word} " in line]
        return [line.split(" ", 3)[1:] for line in told]


def tbccl() -> str:
    """The command `tbccl`: the one that is installed beside this Python, or in PATH."""
    beside = Path(sys.executable).parent / "tbccl"
    found = os.environ.get("COMMAND_OF_TBCCL") or (str(beside) if beside.exists() else shutil.which("tbccl"))
    if found is None:
        pytest.fail("there is no command tbccl in PATH; set COMMAND_OF_TBCCL to where it is")
    return found


@functools.cache
def warm() -> tuple[str, ...]:
    """A command like `python`, for programs that find torch imported: see `warm.py`."""
    folder = tempfile.mkdtemp(prefix="tbccl-warm-")
    place = os.path.join(folder, "door")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(place)
        door.listen(64)
        server = subprocess.Popen(
            [sys.executable, str(HERE / "warm.py"), "serve", str(door.fileno())],
            # See `run`; what a server decides about its buffers holds for its children.
            env={**{k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}, "OMP_NUM_THREADS": "1"},
            pass_fds=[door.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )

    def end() -> None:
        server.stdin.close()
        server.wait(PATIENCE)
        shutil.rmtree(folder)

    atexit.register(end)
    return sys.executable, "-I", "-S", str(HERE / "warm.py"), place


def run(command: Sequence[str], patience: float = PATIENCE, **variables: str) -> Ended:
    """Runs a command to its end; after `patience` seconds it and all that it has started are killed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    for launchers in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        if launchers not in variables:
            environment.pop(launchers, None)
    # Without buffers a line and its end are written one after the other, and lines of processes that share an output mix.
    environment.pop("PYTHONUNBUFFERED", None)
    process = subprocess.Popen(
        list(command), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        pytest.fail(f"{' '.join(command)} was not done within {patience} s\n{said[-6000:]}")
    return Ended(process.returncode, said)


def job(program: Path | str, *arguments: str, ranks: int = 2, transport: str = "shm", cold: bool = False) -> Ended:
    """Runs a program of this folder, or any, on so many ranks, over a transport; `verbs` is a software fabric. Cold ranks
    are started by the launcher itself."""
    python = (sys.executable,) if cold else warm()
    program = [*python, str(HERE / program), *arguments]
    limit = ["--timeout", str(PATIENCE - 20)]
    if transport == "verbs":
        return run([*fabric(ranks), *limit, "--", *program])
    return run([tbccl(), "run", "-n", str(ranks), "--transport", transport, *limit, "--", *program])


def fabric(ranks: int) -> list[str]:
    """The command that starts ranks on a software fabric, each on a machine of its own."""
    if sys.platform != "linux":
        pytest.skip("the software RDMA device is for Linux")
    built = ROOT / "target" / "debug" / "tbccl"
    command = os.environ.get("COMMAND_OF_FABRIC") or (str(built) if built.exists() else tbccl())
    kind = {2: "ib-pair", 4: "apple-tb5-mesh4"}[ranks]
    wiring = ROOT / "configs" / "fabrics" / f"{kind}.toml"
    return [command, "fabric", "run", "--fabric", str(wiring), "--transport", "verbs"]
