"""MLX programs under each launcher that can start them."""

import os
import random
import secrets
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


def mpirun(*arguments, **variables):
    """Runs two ranks under Open MPI, which sets rank and size for them, but no address of the rendezvous."""
    assert shutil.which("mpirun"), "no Open MPI in PATH: tools/python-env mlx installs it"
    env = {
        "TBCCL_ROOT": f"localhost:{port()}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **variables,
    }
    return jobs.finish(["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "2", *arguments], env)


def test_the_mpirun_of_open_mpi():
    assert mpirun(sys.executable, PROGRAM).expect_success().lines("@hello") == HELLO


#: Rank that says whether it has met the others, and whether the secret is on a command line.
WITH_A_SECRET = """
import glob, os, sys, tbccl
if sys.argv[1:] == [os.environ["OMPI_COMM_WORLD_RANK"]]:
    os.environ["TBCCL_SECRET"] = 64 * "0"
try:
    comm = tbccl.init(timeout=5)
except tbccl.BootstrapError as error:
    print("@refused", flush=True)
    sys.exit()
secret = os.environ["TBCCL_SECRET"].encode()
shown = 0
for process in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        shown += secret in open(process, "rb").read()
    except OSError:
        pass
print("@met", comm.size, shown, flush=True)
comm.barrier()
"""


def test_ranks_of_open_mpi_need_a_secret_in_common_which_is_on_no_command_line():
    passed = ("-x", "TBCCL_SECRET", "-x", "TBCCL_ROOT", sys.executable, "-c", WITH_A_SECRET)
    secret = secrets.token_hex(32)
    assert mpirun(*passed, TBCCL_SECRET=secret).expect_success().lines("@met") == 2 * ["@met 2 0"]
    result = mpirun(*passed, "1", TBCCL_SECRET=secret).expect_success()
    assert result.lines("@refused") == 2 * ["@refused"] and not result.lines("@met"), result
