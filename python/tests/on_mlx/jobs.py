"""Helpers that run jobs of Python processes under a launcher, in bounded time and without leftovers."""

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

#: Version of MLX, as numbers.
VERSION = tuple(int(part) for part in mx.__version__.split(".")[:3])
#: Skips tests of exceptions before MLX 0.32.1, in which an exception of a thread ends the process.
requires_exceptions = pytest.mark.skipif(
    VERSION < (0, 32, 1), reason="this version of MLX ends the process instead"
)



def needs(is_there: bool, what: str) -> pytest.MarkDecorator:
    """Skips a test without what it needs; in CI, which sets `TBCCL_TEST_REQUIRE_ALL`, it runs and fails."""
    required = os.environ.get("TBCCL_TEST_REQUIRE_ALL") == "1"
    return pytest.mark.skipif(not is_there and not required, reason=f"{what} is not installed")


HERE = Path(__file__).parent
RANKS = HERE / "ranks"
ROOT = HERE.parents[2]
EXAMPLES = ROOT / "python" / "examples"

# Environment variable that identifies the processes of a job.
_MARK = "MARK_OF_A_TEST"
_numbers = itertools.count()

# Longer than any job here takes on a busy machine.
TIMEOUT_SECONDS = 150.0


@dataclass
class JobResult:
    """Exit status, output and duration of a finished job."""

    code: int
    out: str
    err: str
    seconds: float

    def lines(self, word: str) -> list[str]:
        """Returns the lines of output whose first word is `word`, sorted."""
        return sorted(line for line in self.out.splitlines() if line.split(" ", 1)[0] == word)

    def expect_success(self) -> JobResult:
        """Returns the result, after checking that the exit status is 0."""
        assert self.code == 0, f"status {self.code}\n{self.out[-4000:]}\n{self.err[-6000:]}"
        return self


def tbccl() -> str:
    """Returns the path of the command `tbccl`."""
    command = shutil.which("tbccl")
    assert command, "the tbccl command is not in PATH"
    return command


def run(
    ranks: int, program: Path, *args: str, env: dict[str, str] | None = None, options: tuple[str, ...] = ()
) -> JobResult:
    """Runs ranks of a Python program under `tbccl run`."""
    command = [tbccl(), "run", "-n", str(ranks), *options, "--", sys.executable, str(program), *args]
    return finish(command, env)


def checks(ranks: int, module: str, transport: str = "shm", **env: str) -> JobResult:
    """Runs all checks of a module in `ranks/` on each rank."""
    result = run(ranks, RANKS / f"{module}.py", env={"TBCCL_TRANSPORT": transport, **env})
    result.expect_success()
    assert len(result.lines("@checked")) == ranks, result.out
    return result


def over_fabric(
    ranks: int, program: Path, *args: str, env: dict[str, str] | None = None, module: str | None = None
) -> JobResult:
    """Runs ranks of a Python program on a software fabric, each on a node of its own.

    `module` is the Python module that runs the program, such as `tbccl.mlx`; None: Python itself.
    """
    build_dirs = (ROOT / "target" / profile for profile in ("debug", "release"))
    build_dir = next((folder for folder in build_dirs if (folder / "softrdma").exists()), None)
    if build_dir is None:
        packages = "-p tbccl-cli -p tbccl-softrdma -p tbccl-ffi -p tbccl-mpi-shim"
        pytest.fail(f"the software device is not built: cargo build {packages} --lib --bins")
    fabric = ROOT / "configs" / "fabrics" / f"apple-tb5-mesh{ranks}.toml"
    command = [str(build_dir / "tbccl"), "fabric", "run", "--fabric", str(fabric), "--transport", "verbs"]
    python = [sys.executable, *([] if module is None else ["-m", module])]
    return finish([*command, "--", *python, str(program), *args], env)


def environment(changes: dict[str, str]) -> dict[str, str]:
    """Returns the environment of a job."""
    # A test that a launcher started must not pass on its rank to the jobs that it starts.
    prefixes = ("TBCCL_", "MLX_", "OMPI_")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(prefixes)}
    # Otherwise MLX calls a C++ compiler to fuse operations, which takes longer than the rest of the test.
    settings = {"MLX_DISABLE_COMPILE": "1", "PYTHONUNBUFFERED": "1", "TBCCL_CALIBRATE": "0"}
    # A module for MLX is compiled once, and not into the user's cache folder.
    settings["XDG_CACHE_HOME"] = str(ROOT / "target" / "cache")
    return {**inherited, **settings, **changes}


def finish(
    command: list[str], env: dict[str, str] | None = None, timeout: float = TIMEOUT_SECONDS
) -> JobResult:
    """Runs a command to its end, and checks that none of its processes outlives it."""
    mark = f"{os.getpid()}.{next(_numbers)}"
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        variables = environment({"TMPDIR": folder, _MARK: mark, **(env or {})})
        process = subprocess.Popen(
            command,
            env=variables,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            _end_all(mark)
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"not done within {timeout} s\n{out[-4000:]}\n{err[-6000:]}") from None
        seconds = time.monotonic() - began
        leftover = _wait_until_gone(mark)
    assert not leftover, f"processes still run: {leftover}\n{err[-2000:]}"
    return JobResult(process.returncode, out, err, seconds)


def _marked(mark: str) -> list[int]:
    """Returns the process ids of a job."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{_MARK}={mark}\0".encode() in (folder / "environ").read_bytes():
                processes.append(int(folder.name))
        except OSError:
            continue
    return processes


def _wait_until_gone(mark: str) -> list[int]:
    deadline = time.monotonic() + 5
    while (leftover := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    if leftover:
        _end_all(mark)
    return leftover


def _end_all(mark: str) -> None:
    for process in _marked(mark):
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
