"""The examples for MLX train to what a single process trains to, whatever carries their messages."""

import sys

import jobs
import numpy as np
import pytest

EXAMPLES = [
    ("04_mlx_data_parallel.py", ()),
    ("05_mlx_tensor_parallel.py", ("--model", "mlp")),
    ("05_mlx_tensor_parallel.py", ("--model", "transformer")),
    ("06_mlx_pipeline.py", ()),
]


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda example: "-".join([example[0][:2], *example[1][1:]]))
def example(request, tmp_path_factory):
    """An example, its arguments, and what a single process trains to."""
    name, args = request.param
    file = tmp_path_factory.mktemp("single") / "weights.npz"
    program = jobs.EXAMPLES / name
    done = jobs.finish([sys.executable, str(program), *args, "--save", str(file)]).well()
    losses = [float(line.split()[-1]) for line in done.out.splitlines() if line.startswith("step")]
    assert losses[-1] < losses[0], "it learns something"
    return program, args, dict(np.load(file))


def check_same(single, file):
    found = dict(np.load(file))
    assert found.keys() == single.keys()
    for name, weights in single.items():
        assert found[name].shape == weights.shape, name
        apart = np.abs(found[name] - weights).max()
        assert apart <= 1e-5, (name, apart)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_train_to_the_same_weights(example, ranks, tmp_path):
    program, args, single = example
    file = tmp_path / "weights.npz"
    jobs.run(ranks, program, *args, "--save", str(file)).well()
    check_same(single, file)


def test_over_tcp(example, tmp_path):
    program, args, single = example
    file = tmp_path / "weights.npz"
    jobs.run(4, program, *args, "--save", str(file), env={"TBCCL_TRANSPORT": "tcp"}).well()
    check_same(single, file)


@pytest.mark.skipif(sys.platform != "linux", reason="the software device is for Linux")
def test_over_devices_in_software(example, tmp_path):
    program, args, single = example
    file = tmp_path / "weights.npz"
    jobs.over_fabric(4, program, *args, "--save", str(file)).well()
    check_same(single, file)
