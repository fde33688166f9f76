"""`tbccl.mlx.init` with a missing launcher, absent ranks, or unsuitable versions."""

import sys

import jobs


def python(text, env=None):
    return jobs.finish([sys.executable, "-c", text], env)


def test_without_a_launcher_it_says_how_to_start():
    result = python("import tbccl.mlx; tbccl.mlx.init()")
    assert result.code == 1 and "UsageError" in result.err and "tbccl run -n RANKS" in result.err, result.err


def test_without_a_launcher_there_is_a_group_of_one_for_who_wants_it():
    text = "import tbccl.mlx; g = tbccl.mlx.init(strict=False); print(g.rank(), g.size())"
    result = python(text).expect_success()
    assert result.out.split() == ["0", "1"]


def test_a_job_of_one_rank_is_a_group_of_one(tmp_path):
    program = tmp_path / "one.py"
    program.write_text("import tbccl.mlx; g = tbccl.mlx.init(); print(g.rank(), g.size())")
    assert jobs.run(1, program).expect_success().out.split() == ["0", "1"]


def test_half_of_a_launchers_variables_is_an_error_that_names_the_other():
    result = python("import tbccl.mlx; tbccl.mlx.init()", {"MLX_RANK": "0"})
    assert result.code == 1 and "BootstrapError" in result.err and "MLX_WORLD_SIZE" in result.err, result.err


def test_ranks_that_do_not_come_are_named():
    env = {"MLX_RANK": "0", "MLX_WORLD_SIZE": "2", "NCCL_HOST_IP": "127.0.0.1", "NCCL_PORT": "11"}
    env["TBCCL_TIMEOUT"] = "1"
    result = python("import tbccl.mlx; tbccl.mlx.init()", env)
    assert result.code == 1 and "BootstrapError" in result.err, result.err
    assert "not joined in time: 1" in result.err, result.err
    assert result.seconds < 30


def test_an_mpi_library_that_mlx_has_looked_for_in_vain_is_said():
    text = "import mlx.core as mx; mx.distributed.init(backend='mpi'); import tbccl.mlx; tbccl.mlx.init()"
    env = {"MLX_RANK": "0", "MLX_WORLD_SIZE": "2", "NCCL_HOST_IP": "127.0.0.1", "NCCL_PORT": "11"}
    result = python(text, {"MLX_MPI_LIBNAME": "/nowhere/libmpi.so", **env})
    assert result.code == 1 and "UsageError" in result.err, result.err
    assert "before mx.distributed is used" in result.err, result.err


def test_a_library_of_another_version_is_refused():
    text = "import tbccl; tbccl.__version__ = '99.0'; import tbccl.mlx; tbccl.mlx.init(strict=False)"
    result = python(text)
    assert result.code == 1 and "UsageError" in result.err, result.err
    assert "this package of 99.0" in result.err, result.err


def test_an_mlx_that_is_too_old_is_refused():
    text = "import mlx.core as mx; mx.__version__ = '0.28.0'; import tbccl.mlx; tbccl.mlx.init(strict=False)"
    result = python(text)
    assert result.code == 1 and "UsageError" in result.err and "0.29" in result.err, result.err


def test_availability_is_told_without_exceptions():
    assert python("import tbccl.mlx; print(tbccl.mlx.is_available())").expect_success().out.strip() == "True"
    text = (
        "import mlx.core as mx; mx.__version__ = '0.28.0'\n"
        "import tbccl.mlx; print(tbccl.mlx.is_available())"
    )
    assert python(text).expect_success().out.strip() == "False"
