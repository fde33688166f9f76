"""Ranks that die, stall, disagree, raise or are interrupted: prompt exceptions that name the rank."""

from __future__ import annotations

import pytest
from conftest import SHM, TCP, Transport, program, start, wait_for


def count_survivors(transport: Transport, ranks: int, failure: str) -> tuple[int, str]:
    """Returns how many ranks printed that they survived the failure, and all output."""
    command = [*transport.command(ranks), "--keep-going", "--", *program("failing.py", failure)]
    _, output = wait_for(start(command))
    assert "Traceback" not in output, output
    return output.count("survived"), output


@pytest.mark.parametrize("transport", [SHM, TCP], ids=lambda transport: transport.name)
def test_a_killed_rank_is_named_within_3_s_and_the_others_go_on_without_it(transport: Transport) -> None:
    survived, output = count_survivors(transport, 3, "killed")
    assert survived == 2 and "was killed by SIGKILL" in output, output


def test_a_killed_rank_ends_a_job_that_does_not_go_on_without_it() -> None:
    status, output = wait_for(start([*SHM.command(3), "--", *program("failing.py", "killed")]))
    assert status != 0 and "was killed by SIGKILL" in output, output


@pytest.mark.parametrize("transport", [SHM, TCP], ids=lambda transport: transport.name)
def test_an_error_of_the_send_ends_a_sendrecv_whose_receive_takes_its_time(transport: Transport) -> None:
    survived, output = count_survivors(transport, 3, "send_of_sendrecv")
    assert survived == 1, output


def test_ranks_that_call_different_things_are_told() -> None:
    survived, output = count_survivors(SHM, 2, "mismatch")
    assert survived == 2, output


def test_an_exception_that_leaves_a_rank_s_block_is_heard_of() -> None:
    survived, output = count_survivors(SHM, 2, "raising")
    assert survived == 2, output


@pytest.mark.parametrize("transport", [SHM, TCP], ids=lambda transport: transport.name)
def test_ctrl_c_ends_whatever_wait_at_once(transport: Transport) -> None:
    survived, output = count_survivors(transport, 2, "interrupted")
    assert survived == 2, output


def test_a_time_limit_of_one_call() -> None:
    survived, output = count_survivors(SHM, 2, "timing_out")
    assert survived == 2, output


def test_another_thread_aborts() -> None:
    survived, output = count_survivors(SHM, 2, "aborted")
    assert survived == 2, output
