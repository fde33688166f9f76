"""`tbccl.mlx.init` where something is missing or in the way."""

import sys

import jobs


def python(text, env=None):
    return jobs.finish([sys.executable, "-c", text], env)


def test_without_a_launcher_it_says_how_to_start():
    done = python("import tbccl.mlx; tbccl.mlx.init()")
    assert done.code == 1 and "UsageError" in done.err and "tbccl run -n RANKS" in done.err, done.err


def test_without_a_launcher_there_is_a_group_of_one_for_who_wants_it():
    done = python("import tbccl.mlx; g = tbccl.mlx.init(strict=False); print(g.rank(), g.size())").well()
    assert done.out.split() == ["0", "1"]


def test_a_job_of_one_rank_is_a_group_of_one(tmp_path):
    program = tmp_path / "one.py"
    program.write_text("import tbccl.mlx; g = tbccl.mlx.init(); print(g.rank(), g.size())")
    assert jobs.run(1, program).well().out.split() == ["0", "1"]


def test_half_of_a_launchers_variables_is_an_error_that_names_the_other():
    done = python("import tbccl.mlx; tbccl.mlx.init()", {"MLX_RANK": "0"})
    assert done.code == 1 and "BootstrapError" in done.err and "MLX_WORLD_SIZE" in done.err, done.err


def test_ranks_that_do_not_come_are_named():
    env = {"MLX_RANK": "0", "MLX_WORLD_SIZE": "2", "NCCL_HOST_IP": "127.0.0.1", "NCCL_PORT": "11", "TBCCL_TIMEOUT": "1"}
    done = python("import tbccl.mlx; tbccl.mlx.init()", env)
    assert done.code == 1 and "BootstrapError" in done.err and "not joined in time: 1" in done.err, done.err
    assert done.seconds < 30


def test_an_mpi_library_that_mlx_has_looked_for_in_vain_is_said():
    text = "import mlx.core as mx; mx.distributed.init(backend='mpi'); import tbccl.mlx; tbccl.mlx.init()"
    env = {"MLX_RANK": "0", "MLX_WORLD_SIZE": "2", "NCCL_HOST_IP": "127.0.0.1", "NCCL_PORT": "11"}
    done = python(text, {"MLX_MPI_LIBNAME": "/nowhere/libmpi.so", **env})
    assert done.code == 1 and "UsageError" in done.err and "before mx.distributed is used" in done.err, done.err


def test_a_library_of_another_version_is_refused():
    text = "import tbccl; tbccl.__version__ = '99.0'; import tbccl.mlx; tbccl.mlx.init(strict=False)"
    done = python(text)
    assert done.code == 1 and "UsageError" in done.err and "this package of 99.0" in done.err, done.err


def test_an_mlx_that_is_too_old_is_refused():
    text = "import mlx.core as mx; mx.__version__ = '0.28.0'; import tbccl.mlx; tbccl.mlx.init(strict=False)"
    done = python(text)
    assert done.code == 1 and "UsageError" in done.err and "0.29" in done.err, done.err


def test_availability_is_told_without_exceptions():
    assert python("import tbccl.mlx; print(tbccl.mlx.is_available())").well().out.strip() == "True"
    text = "import mlx.core as mx; mx.__version__ = '0.28.0'; import tbccl.mlx; print(tbccl.mlx.is_available())"
    assert python(text).well().out.strip() == "False"
