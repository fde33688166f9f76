"""The MLX examples train to the same weights as a single process, over each transport."""

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


def example_id(example):
    name, args = example
    return "-".join([name[:2], *args[1:]])


@pytest.fixture(scope="module", params=EXAMPLES, ids=example_id)
def example(request, tmp_path_factory):
    """Returns an example, its arguments, and the weights that a single process trains."""
    name, args = request.param
    file = tmp_path_factory.mktemp("single") / "weights.npz"
    program = jobs.EXAMPLES / name
    result = jobs.finish([sys.executable, str(program), *args, "--save", str(file)]).expect_success()
    losses = [float(line.split()[-1]) for line in result.out.splitlines() if line.startswith("step")]
    assert losses[-1] < losses[0], losses
    return program, args, dict(np.load(file))


def check_same(single, file):
    trained = dict(np.load(file))
    assert trained.keys() == single.keys()
    for name, weights in single.items():
        assert trained[name].shape == weights.shape, name
        difference = np.abs(trained[name] - weights).max()
        assert difference <= 1e-5, (name, difference)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_train_to_the_same_weights(example, ranks, tmp_path):
    program, args, single = example
    file = tmp_path / "weights.npz"
    jobs.run(ranks, program, *args, "--save", str(file)).expect_success()
    check_same(single, file)


def test_over_tcp(example, tmp_path):
    program, args, single = example
    file = tmp_path / "weights.npz"
    jobs.run(4, program, *args, "--save", str(file), env={"TBCCL_TRANSPORT": "tcp"}).expect_success()
    check_same(single, file)


@pytest.mark.skipif(sys.platform != "linux", reason="the software device is for Linux")
def test_over_devices_in_software(example, tmp_path):
    program, args, single = example
    file = tmp_path / "weights.npz"
    jobs.over_fabric(4, program, *args, "--save", str(file)).expect_success()
    check_same(single, file)
