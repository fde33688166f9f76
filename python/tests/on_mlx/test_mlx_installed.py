"""Programs that name a backend of MLX run over tbccl after `tbccl.mlx.install`."""

import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import jobs
import mlx.nn as nn
import pytest

PROGRAM = jobs.RANKS / "installed.py"
#: Groups through MLX's MPI interface, and not of MLX's own kind.
MPI = {"TBCCL_MLX_NATIVE": "off"}


def installed(role, *args, ranks=2, env=None):
    return jobs.run(ranks, PROGRAM, role, *args, env={"INSTALL": "1", **(env or {})}).expect_success()


@pytest.mark.parametrize("backend", ["any", "ring", "jaccl", "mpi", "nccl"])
def test_every_name_gives_the_group_of_the_job(backend):
    assert len(installed("names_a_backend", backend).lines("@hello")) == 2


def test_arguments_that_mlx_refuses_are_refused():
    assert len(installed("names_what_mlx_refuses").lines("@refused")) == 6


def test_functions_without_a_group_use_the_job():
    assert [line.split(" ")[1] for line in installed("names_none", ranks=3).lines("@sum")] == ["9.0"] * 3


def test_arrays_of_more_elements_than_mlx_can_tell_are_taken_to_pieces():
    assert len(installed("large_arrays", ranks=3, env=MPI).lines("@right")) == 3


@jobs.needs(hasattr(nn, "fully_shard"), "an MLX with fully_shard")
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("env", [{}, MPI])
def test_training_with_sharded_parameters_is_that_of_one_process(ranks, env):
    assert len(installed("trains_fully_sharded", ranks=ranks, env=env).lines("@right")) == ranks


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(ranks, variables, command):
    """Runs each rank with variables and arguments of its own, without a launcher, and returns the results."""

    def one(rank):
        return jobs.finish([sys.executable, *command(rank)], variables(rank))

    with ThreadPoolExecutor(ranks) as pool:
        return [result.expect_success() for result in pool.map(one, range(ranks))]


@pytest.mark.parametrize("form", ["flat", "nested"])
def test_an_unmodified_program_with_the_variables_of_a_ring_runs_over_tbccl(tmp_path, form):
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    hosts = tmp_path / "hosts.json"
    hosts.write_text(json.dumps(addresses if form == "flat" else [[address] for address in addresses]))

    def variables(rank):
        return {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts), "MLX_RING_VERBOSE": "1"}

    command = ("-m", "tbccl.mlx", str(PROGRAM), "names_a_backend", "ring")
    results = start(2, variables, lambda rank: command)
    assert all(len(result.lines("@hello")) == 1 and "2 3.0" in result.out for result in results)


def runners(ranks, files, coordinators, root=None):
    """Runs exo's calls in processes that a program starts, with a file of addresses or devices for each."""
    shared = {"TBCCL_SECRET": "5e" * 32, **({"TBCCL_ROOT": root} if root else {})}
    kind = "jaccl" if coordinators else "ring"

    def variables(rank):
        # Rank 0 listens at all addresses, so the job needs a secret.
        return {"COORDINATOR": coordinators[rank] if coordinators else "", **shared}

    def command(rank):
        program = str(jobs.RANKS.parent / "recipes" / "runners.py")
        return "-m", "tbccl.mlx", program, kind, files[rank], str(rank)

    results = start(ranks, variables, command)
    lines = sorted(line for result in results for line in result.lines("@runner"))
    assert lines == [f"@runner {rank} {ranks} 1 {sum(range(ranks))}" for rank in range(ranks)]


def written(folder, rank, content):
    path = folder / f"hosts_{rank}.json"
    path.write_text(json.dumps(content))
    return str(path)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_processes_that_a_program_starts_for_a_ring_run_over_tbccl(tmp_path, ranks):
    ports = [free_port() for _ in range(ranks)]

    def address(rank, of):
        # A rank of exo listens at all addresses of its host, and knows those of its neighbors.
        if rank == of:
            return f"0.0.0.0:{ports[of]}"
        is_neighbor = (rank - of) % ranks in (1, ranks - 1)
        return f"127.0.0.1:{ports[of]}" if is_neighbor else "198.51.100.1:0"

    files = [written(tmp_path, rank, [address(rank, of) for of in range(ranks)]) for rank in range(ranks)]
    runners(ranks, files, [], f"127.0.0.1:{ports[0]}" if ranks > 3 else None)


def test_processes_that_a_program_starts_for_jaccl_run_over_tbccl(tmp_path):
    port = free_port()
    devices = [[None if i == j else f"rdma_en{i}{j}" for j in range(3)] for i in range(3)]
    files = [written(tmp_path, rank, devices) for rank in range(3)]
    runners(3, files, [f"{host}:{port}" for host in ("0.0.0.0", "127.0.0.1", "127.0.0.1")])


def test_a_command_of_its_own_runs_over_tbccl_by_a_variable():
    command = [jobs.tbccl(), "run", "-n", "2", "-x", "TBCCL_MLX=on", "--", sys.executable, str(PROGRAM)]
    result = jobs.finish([*command, "names_a_backend", "ring"]).expect_success()
    assert len(result.lines("@hello")) == 2


@pytest.mark.parametrize("first", ["tbccl.mlx", "mlx.core"])
def test_the_variable_holds_whatever_a_program_imports_first(first):
    text = (
        f"import {first}\n"
        "import mlx.core as mx\n"
        "group = mx.distributed.init(backend='ring', strict=True)\n"
        "total = mx.distributed.all_sum(mx.ones(1)).item()\n"
        "import os; os.write(1, f'@hello {group.size()} {total:g}\\n'.encode())\n"
    )
    command = [jobs.tbccl(), "run", "-n", "2", "-x", "TBCCL_MLX=on", "--", sys.executable, "-c", text]
    assert jobs.finish(command).expect_success().lines("@hello") == ["@hello 2 2"] * 2


def test_calls_without_a_group_look_for_it_once():
    text = (
        "import mlx.core as mx\n"
        "from tbccl.mlx import _groups\n"
        "assert mx.distributed.all_sum(mx.ones(1)).item() == 2\n"
        "_groups.library = None\n"
        "for call in (mx.distributed.all_sum, mx.distributed.all_gather):\n"
        "    mx.eval(call(mx.ones(1)))\n"
        "import os; os.write(1, b'@done\\n')\n"
    )
    command = [jobs.tbccl(), "run", "-n", "2", "-x", "TBCCL_MLX=on", "--", sys.executable, "-c", text]
    assert len(jobs.finish(command).expect_success().lines("@done")) == 2


def test_without_a_launcher_functions_do_what_they_did_also_after_uninstall():
    text = (
        "import tbccl.mlx, mlx.core as mx\n"
        "before = mx.distributed.is_available('nccl')\n"
        "assert tbccl.mlx.install() and mx.distributed.is_available('nccl') == before\n"
        "group = mx.distributed.init()\n"
        "total = mx.distributed.all_sum(mx.ones(3)), mx.distributed.all_gather(mx.ones(3), group=group)\n"
        "print(group.size(), total[0].tolist() == total[1].tolist() == [1.0] * 3)\n"
        "kept = mx.distributed.init\n"
        "tbccl.mlx.uninstall()\n"
        "assert mx.distributed.init is not kept\n"
        "kept(backend='ring', strict=True)\n"
    )
    result = jobs.finish([sys.executable, "-c", text])
    assert result.out.split() == ["1", "True"] and "[ring]" in result.err, result.err


def test_a_module_is_run_and_its_arguments_are_its_own():
    result = jobs.finish([sys.executable, "-m", "tbccl.mlx", "-m", "json.tool", "--help"]).expect_success()
    assert "json.tool" in result.out and "tbccl" not in result.out


def test_a_program_finds_the_modules_beside_it(tmp_path):
    (tmp_path / "beside.py").write_text("WORD = 'found'")
    (tmp_path / "program.py").write_text("import beside, sys; print(beside.WORD, sys.argv[1:])")
    command = [sys.executable, "-m", "tbccl.mlx", str(tmp_path / "program.py"), "--own"]
    assert jobs.finish(command).expect_success().out.split() == ["found", "['--own']"]


def test_help_says_how_to_start():
    result = jobs.finish([sys.executable, "-m", "tbccl.mlx", "--help"]).expect_success()
    assert "tbccl run -n 2 -- python -m tbccl.mlx train.py" in result.out
    assert jobs.finish([sys.executable, "-m", "tbccl.mlx"]).code == 1


def test_it_can_be_turned_off():
    text = "import tbccl.mlx, mlx.core as mx; print(tbccl.mlx.install(), mx.distributed.init.__module__)"
    env = {"MLX_RANK": "0", "MLX_WORLD_SIZE": "1", "NCCL_HOST_IP": "127.0.0.1", "NCCL_PORT": "1"}
    result = jobs.finish([sys.executable, "-c", text], {**env, "TBCCL_MLX": "off"})
    assert result.expect_success().out.split()[0] == "False", result.out
    assert jobs.finish([sys.executable, "-c", text], env).expect_success().out.split() == [
        "True",
        "tbccl.mlx._install",
    ]
    wrong = jobs.finish([sys.executable, "-c", text], {**env, "TBCCL_MLX": "yes"})
    assert wrong.code == 1 and "TBCCL_MLX=yes is neither on nor off" in wrong.err, wrong.err
