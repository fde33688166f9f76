"""Jobs of Python processes under a launcher, which end in time and leave nothing behind."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import pytest

#: The version of MLX, as numbers.
VERSION = tuple(int(part) for part in mx.__version__.split(".")[:3])
#: Before 0.32.1 MLX lets exceptions of its threads end the process.
raises = pytest.mark.skipif(VERSION < (0, 32, 1), reason="this version of MLX ends the process instead")

HERE = Path(__file__).parent
RANKS = HERE / "ranks"
ROOT = HERE.parents[2]
EXAMPLES = ROOT / "python" / "examples"

# By which everything that a job leaves behind is found.
_MARK = "MARK_OF_A_TEST"
_numbers = itertools.count()

# Longer than anything here takes on a busy machine.
PATIENCE = 150.0


@dataclass
class Done:
    """A job that has ended."""

    code: int
    out: str
    err: str
    seconds: float

    def lines(self, word: str) -> list[str]:
        """What ranks said under a word."""
        return sorted(line for line in self.out.splitlines() if line.split(" ", 1)[0] == word)

    def well(self) -> Done:
        """The same, if it has gone well."""
        assert self.code == 0, f"status {self.code}\n{self.out[-4000:]}\n{self.err[-6000:]}"
        return self


def tbccl() -> str:
    """The command line."""
    found = shutil.which("tbccl")
    assert found, "the tbccl command is not in PATH"
    return found


def run(ranks: int, program: Path, *args: str, env: dict[str, str] | None = None, options: tuple[str, ...] = ()) -> Done:
    """Ranks of a Python program under `tbccl run`."""
    command = [tbccl(), "run", "-n", str(ranks), *options, "--", sys.executable, str(program), *args]
    return finish(command, env)


def checks(ranks: int, module: str, transport: str = "shm", **env: str) -> Done:
    """Has each rank run all checks of a module in `ranks/`."""
    done = run(ranks, RANKS / f"{module}.py", env={"TBCCL_TRANSPORT": transport, **env})
    done.well()
    assert len(done.lines("@checked")) == ranks, done.out
    return done


def over_fabric(ranks: int, program: Path, *args: str) -> Done:
    """Ranks that are machines of their own, wired by RDMA devices in software."""
    built = (ROOT / "target" / profile for profile in ("debug", "release"))
    here = next((folder for folder in built if (folder / "softrdma").exists()), None)
    if here is None:
        pytest.fail("the software device is not built: cargo build -p tbccl-cli -p tbccl-softrdma -p tbccl-mpi-shim --lib --bins")
    fabric = ROOT / "configs" / "fabrics" / f"apple-tb5-mesh{ranks}.toml"
    command = [str(here / "tbccl"), "fabric", "run", "--fabric", str(fabric), "--transport", "verbs"]
    return finish([*command, "--", sys.executable, str(program), *args])


def finish(command: list[str], env: dict[str, str] | None = None, patience: float = PATIENCE) -> Done:
    """Runs a command to its end; nothing that it has started lives longer."""
    mark = f"{os.getpid()}.{next(_numbers)}"
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        # A test that was itself started by a launcher is no rank of the jobs that it starts.
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("TBCCL_", "MLX_", "OMPI_"))}
        # Without this MLX has a C++ compiler fuse what a layer computes, which takes longer than all else here.
        inherited["MLX_DISABLE_COMPILE"] = "1"
        variables = {**inherited, "TMPDIR": folder, _MARK: mark, "PYTHONUNBUFFERED": "1", **(env or {})}
        process = subprocess.Popen(
            command, env=variables, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            out, err = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            _end_all(mark)
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"no end within {patience} s\n{out[-4000:]}\n{err[-6000:]}") from None
        seconds = time.monotonic() - began
        left = _wait_until_gone(mark)
    assert not left, f"processes are left: {left}\n{err[-2000:]}"
    return Done(process.returncode, out, err, seconds)


def _marked(mark: str) -> list[int]:
    """Processes of a job."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{_MARK}={mark}\0".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def _wait_until_gone(mark: str) -> list[int]:
    until = time.monotonic() + 5
    while (left := _marked(mark)) and time.monotonic() < until:
        time.sleep(0.05)
    if left:
        _end_all(mark)
    return left


def _end_all(mark: str) -> None:
    for process in _marked(mark):
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
