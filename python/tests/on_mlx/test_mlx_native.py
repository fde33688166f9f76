"""Groups of MLX's own kind, which `tbccl.mlx.install` compiles on Linux, and what happens without them."""

import os
import shutil
import sys
import time
from importlib.util import find_spec

import jobs
import mlx.nn as nn
import pytest

from tbccl.mlx import _versions

COMPILES = (
    sys.platform == "linux"
    and jobs.VERSION >= (0, 30, 1)
    and find_spec("nanobind") is not None
    and any(shutil.which(name) for name in ("c++", "g++", "clang++"))
)
pytestmark = jobs.needs(COMPILES, "a C++ compiler, or nanobind, for groups of MLX's own kind")

PROGRAM = jobs.RANKS / "native.py"


def kinds(role, ranks=2, env=None):
    """Returns the kinds of two groups on each rank, and the lines of the log."""
    result = jobs.run(ranks, PROGRAM, role, env=env).expect_success()
    lines = [line.split(" ")[2:] for line in result.lines("@kind")]
    assert len(lines) == ranks, result.out
    return lines, [line for line in result.lines("@log") if line.startswith("@log tbccl.mlx ")]


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_group_is_of_mlxs_own_kind(ranks):
    assert kinds("says_its_kind", ranks) == ([["native", "native"]] * ranks, [])


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("role", ["drops_groups_early", "scatters_sums"])
def test_it_has_what_the_mpi_interface_lacks(role, ranks):
    assert kinds(role, ranks)[0] == [["native", "native"]] * ranks


@pytest.mark.parametrize("ranks", [2, 3])
def test_streams_of_one_group_take_turns_in_the_order_of_the_program(ranks):
    assert kinds("uses_one_group_on_two_streams", ranks)[0] == [["native", "native"]] * ranks


@jobs.requires_exceptions
def test_no_stream_waits_for_a_call_that_has_failed():
    result = jobs.run(2, PROGRAM, "fails_on_one_of_two_streams").expect_success()
    assert len(result.lines("@error")) == 8, result.out
    assert "disagree on call" in result.out, result.out


def test_groups_of_both_kinds_work_in_one_job():
    assert kinds("mixes_both_kinds")[0] == [["native", "mpi"]] * 2


def on_the_way_of_mpi(role, reason, ranks=2, env=None):
    groups, log = kinds(role, ranks, env)
    assert groups == [["mpi", "mpi"]] * ranks
    assert len(log) == 1 and reason in log[0], log


def test_an_option_turns_them_off():
    on_the_way_of_mpi("says_its_kind", "TBCCL_MLX_NATIVE=off", env={"TBCCL_MLX_NATIVE": "off"})
    wrong = jobs.run(2, PROGRAM, "says_its_kind", env={"TBCCL_MLX_NATIVE": "perhaps"})
    assert wrong.code != 0 and "expected auto or off" in wrong.err, wrong.err


def test_one_rank_without_a_compiler_takes_all_to_the_mpi_interface():
    on_the_way_of_mpi("one_rank_has_no_compiler", "/no/compiler cannot be run", ranks=3)


def test_a_compiler_that_fails_is_said_once():
    on_the_way_of_mpi("says_its_kind", "false cannot compile groups for MLX", env={"CXX": "false"})


def test_a_missing_nanobind_is_said_with_the_remedy():
    on_the_way_of_mpi("has_no_nanobind", "nanobind is not installed: pip install 'nanobind>=")


@pytest.mark.parametrize(
    ("mlx", "remedy"),
    [
        ("0.30.0", "MLX has such groups from 0.30.1 on"),
        ("0.30.6", "pip install 'nanobind>=2.10,<2.11'"),
        ("0.32.1", "pip install 'nanobind>=2.13,<2.15'"),
        ("0.32.2.dev20260901", "pip install 'nanobind>=2.15,<3'"),
        ("0.32.4", "pip install 'nanobind>=3.0.1,<3.2'"),
    ],
)
def test_each_version_of_mlx_is_told_its_nanobind(mlx, remedy):
    assert _versions.nanobind_remedy(mlx) == remedy


def test_a_cache_folder_that_others_may_write_to_is_not_used(tmp_path):
    cache = tmp_path / "tbccl" / "mlx"
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    on_the_way_of_mpi("says_its_kind", "others may write", env={"XDG_CACHE_HOME": str(tmp_path)})


def test_modules_that_nobody_has_used_for_long_are_removed(tmp_path):
    folder = tmp_path / "tbccl" / "mlx"
    for name, days in [("of an old version", 61), ("of another environment", 59)]:
        (folder / name).mkdir(parents=True)
        (folder / name / "tbccl_mlx_native.so").touch()
        used = time.time() - days * 24 * 3600
        os.utime(folder / name, (used, used))
    (folder / "of the user").mkdir()
    os.utime(folder / "of the user", (0, 0))
    folder.chmod(0o700)
    assert kinds("says_its_kind", 2, {"XDG_CACHE_HOME": str(tmp_path)})[0] == [["native", "native"]] * 2
    names = {each.name for each in folder.iterdir() if each.is_dir()}
    assert {"of another environment", "of the user"} < names and "of an old version" not in names, names
    (used,) = (folder / name for name in names if name not in ("of another environment", "of the user"))
    os.utime(used, (0, 0))
    assert kinds("says_its_kind", 2, {"XDG_CACHE_HOME": str(tmp_path)})[0] == [["native", "native"]] * 2
    assert time.time() - used.stat().st_mtime < 3600, "a use counts"


def test_ranks_that_start_together_compile_once(tmp_path):
    assert kinds("says_its_kind", 3, {"XDG_CACHE_HOME": str(tmp_path)})[0] == [["native", "native"]] * 3
    files = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(files) == ["lock", "tbccl_mlx_native.so"]


def installed(ranks, program, *args, env=None, options=()):
    """Runs a program of another test after `tbccl.mlx.install`."""
    command = [jobs.tbccl(), "run", "-n", str(ranks), *options, "--", sys.executable, "-m", "tbccl.mlx"]
    return jobs.finish([*command, str(jobs.RANKS / program), *args], env)


@pytest.mark.parametrize(
    ("module", "ranks", "transport"),
    [
        *[(module, ranks, "shm") for module in ("collectives", "groups", "ours") for ranks in (2, 3)],
        ("messages", 3, "shm"),
        ("layers", 2, "shm"),
        ("groups", 8, "shm"),
        ("layers", 8, "shm"),
        ("collectives", 2, "tcp"),
        ("messages", 2, "tcp"),
    ],
)
def test_the_checks_of_the_mpi_interface_hold(module, ranks, transport):
    result = installed(ranks, f"{module}.py", env={"TBCCL_TRANSPORT": transport}).expect_success()
    assert len(result.lines("@checked")) == ranks, result.out


@pytest.mark.parametrize(
    ("module", "ranks"),
    [("collectives", 2), ("groups", 2), ("messages", 2), ("ours", 2), ("layers", 4)],
)
def test_the_checks_hold_over_devices_in_software(module, ranks):
    result = jobs.over_fabric(ranks, jobs.RANKS / f"{module}.py", module="tbccl.mlx").expect_success()
    assert len(result.lines("@checked")) == ranks, result.out


def test_groups_over_devices_in_software_are_of_mlxs_own_kind():
    lines = jobs.over_fabric(4, PROGRAM, "scatters_sums").expect_success().lines("@kind")
    assert [line.split(" ")[2:] for line in lines] == [["native", "native"]] * 4


@jobs.needs(hasattr(nn, "fully_shard"), "an MLX with fully_shard")
def test_training_with_sharded_parameters_over_devices_in_software():
    program = jobs.RANKS / "installed.py"
    result = jobs.over_fabric(2, program, "trains_fully_sharded", env={"INSTALL": "1"}).expect_success()
    assert len(result.lines("@right")) == 2, result.out


@jobs.requires_exceptions
@pytest.mark.parametrize("role", ["killed_in_a_step", "killed_before_a_message", "killed_before_a_split"])
def test_the_others_are_told_who_was_killed(role):
    result = installed(3, "failing.py", role, options=("--keep-going",))
    raised = [line.split(" ", 4) for line in result.lines("@raised")]
    assert sorted(fields[1] for fields in raised) == ["0", "2"], result.out + result.err
    for _, _, _, error, message in raised:
        assert error == "RuntimeError" and "[tbccl] " in message and "rank 1" in message, message


@pytest.mark.parametrize("role", ["a_message_in_flight", "a_sum_in_flight"])
def test_a_rank_leaves_after_what_it_has_queued(role):
    result = installed(3, "leaving.py", role).expect_success()
    assert [line.split(" ")[2] for line in result.lines("@sum")] == ["3000.0"], result.out


def test_a_pipeline_ends_one_step_ahead():
    assert len(installed(3, "leaving.py", "a_step_ahead").expect_success().lines("@step")) == 3
