"""MLX's own functions over tbccl, on several numbers of ranks and each transport."""

import sys

import jobs
import pytest


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("module", ["collectives", "groups", "messages", "layers", "ours"])
def test_over_shared_memory(module, ranks):
    jobs.checks(ranks, module)


@pytest.mark.parametrize("module", ["collectives", "messages", "layers", "ours"])
def test_over_tcp(module):
    jobs.checks(2, module, "tcp")


def test_groups_over_tcp():
    jobs.checks(4, "groups", "tcp")


@pytest.mark.parametrize("module", ["groups", "messages", "layers"])
def test_eight_ranks(module):
    jobs.checks(8, module)


@pytest.mark.skipif(sys.platform != "linux", reason="the software device is for Linux")
@pytest.mark.parametrize("module", ["groups", "messages", "layers", "ours"])
def test_over_devices_in_software(module):
    result = jobs.over_fabric(2, jobs.RANKS / f"{module}.py").expect_success()
    assert len(result.lines("@checked")) == 2, result.out
