"""Every collective against numpy, over each transport."""

from __future__ import annotations

import pytest
from conftest import SHM, TCP, Transport, fabric_command, program, run, start, wait_for


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_collective_over_shared_memory(ranks: int) -> None:
    run(SHM, ranks, "collectives.py")


def test_every_collective_over_tcp() -> None:
    run(TCP, 2, "collectives.py")


def test_every_collective_over_a_software_rdma_device() -> None:
    status, output = wait_for(start([*fabric_command(2), *program("collectives.py")]))
    assert status == 0, output


@pytest.mark.parametrize("transport", [SHM, TCP], ids=lambda transport: transport.name)
def test_messages_with_tags(transport: Transport) -> None:
    run(transport, 2, "messages.py")
    run(transport, 3, "messages.py")


@pytest.mark.parametrize("transport", [SHM, TCP], ids=lambda transport: transport.name)
def test_a_communicator_grows_by_ranks_that_were_started_later(transport: Transport) -> None:
    output = run(transport, 2, "newcomers.py")
    assert output.count("@joined") == 3 and output.count("@refused") == 2, output
