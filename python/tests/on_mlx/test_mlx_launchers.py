"""MLX programs under each launcher that can start them."""

import os
import random
import shutil
import sys
from pathlib import Path

import jobs
import pytest

PROGRAM = str(jobs.RANKS / "hello.py")
HELLO = ["@hello 0 2 3.0", "@hello 1 2 3.0"]


def mlx_launch(*arguments, path=()):
    command = Path(sys.executable).parent / "mlx.launch"
    # mlx.launch looks for mpirun in PATH, and some versions for Python.
    folders = [*path, str(Path(sys.executable).parent), os.environ["PATH"]]
    env = {"PATH": os.pathsep.join(map(str, folders))}
    # Before 0.30 mlx.launch starts Python by itself.
    python = [sys.executable] if jobs.VERSION >= (0, 30) else []
    return jobs.finish([str(command), *arguments, "--", *python, PROGRAM], env)


def port():
    return str(random.randrange(20000, 60000))


@pytest.mark.parametrize("arguments", [(), ("unmodified",)])
def test_tbccl_run(arguments):
    if arguments and jobs.VERSION < (0, 29, 4):
        pytest.skip("this version of MLX has no variable for the library's name")
    assert jobs.run(2, jobs.RANKS / "hello.py", *arguments).expect_success().lines("@hello") == HELLO


@pytest.mark.skipif(jobs.VERSION < (0, 30), reason="this version of mlx.launch asks NVIDIA's driver first")
def test_mlx_launch_of_nccl():
    result = mlx_launch("--backend", "nccl", "--nccl-port", port(), "-n", "2")
    assert result.lines("@hello") == HELLO, result.out + result.err


def test_mlx_launch_of_ring():
    result = mlx_launch("--backend", "ring", "--starting-port", port(), "-n", "2")
    assert result.lines("@hello") == HELLO, result.out + result.err


def test_mlx_launch_of_mpi_by_our_mpirun(tmp_path):
    jobs.finish([jobs.tbccl(), "install-mpirun", str(tmp_path)]).expect_success()
    assert os.readlink(tmp_path / "mpirun") == os.readlink(tmp_path / "mpiexec")
    result = mlx_launch("--backend", "mpi", "-n", "2", path=[tmp_path])
    assert result.lines("@hello") == HELLO, result.out + result.err


def test_the_mpirun_of_open_mpi():
    assert shutil.which("mpirun"), "no Open MPI in PATH: tools/python-env mlx installs it"
    # mpirun passes rank and size to the ranks, but no address of the rendezvous.
    env = {
        "TBCCL_ROOT": f"localhost:{port()}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "2", sys.executable, PROGRAM]
    assert jobs.finish(command, env).expect_success().lines("@hello") == HELLO
