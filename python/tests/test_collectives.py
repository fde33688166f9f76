"""Every collective against numpy, over everything that moves bytes."""

from __future__ import annotations

import pytest
from conftest import SHM, TCP, Where, ended, on_fabric, program, run, start


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_collective_over_shared_memory(ranks: int) -> None:
    run(SHM, ranks, "collectives.py")


def test_every_collective_over_tcp() -> None:
    run(TCP, 2, "collectives.py")


def test_every_collective_over_a_software_rdma_device() -> None:
    status, output = ended(start([*on_fabric(2), *program("collectives.py")]))
    assert status == 0, output


@pytest.mark.parametrize("where", [SHM, TCP], ids=lambda where: where.name)
def test_messages_with_tags(where: Where) -> None:
    run(where, 2, "messages.py")
    run(where, 3, "messages.py")


@pytest.mark.parametrize("where", [SHM, TCP], ids=lambda where: where.name)
def test_a_communicator_grows_by_ranks_that_were_started_later(where: Where) -> None:
    output = run(where, 2, "newcomers.py")
    assert output.count("@joined") == 3 and output.count("@refused") == 2, output
