"""Ranks that die, stall, disagree, raise or are interrupted: exceptions that say who, soon, and nothing left behind."""

from __future__ import annotations

import pytest
from conftest import SHM, TCP, Where, ended, program, start


def survivors(where: Where, ranks: int, how: str) -> tuple[int, str]:
    """How many ranks said that they saw it, and all that was said."""
    command = [*where.command(ranks), "--keep-going", "--", *program("failing.py", how)]
    _, output = ended(start(command))
    assert "Traceback" not in output, output
    return output.count("survived"), output


@pytest.mark.parametrize("where", [SHM, TCP], ids=lambda where: where.name)
def test_a_killed_rank_is_named_within_3_s_and_the_others_go_on_without_it(where: Where) -> None:
    told, output = survivors(where, 3, "killed")
    assert told == 2 and "was killed by SIGKILL" in output, output


def test_a_killed_rank_ends_a_job_that_does_not_go_on_without_it() -> None:
    status, output = ended(start([*SHM.command(3), "--", *program("failing.py", "killed")]))
    assert status != 0 and "was killed by SIGKILL" in output, output


def test_ranks_that_call_different_things_are_told() -> None:
    told, output = survivors(SHM, 2, "mismatch")
    assert told == 2, output


def test_an_exception_that_leaves_a_rank_s_block_is_heard_of() -> None:
    told, output = survivors(SHM, 2, "raising")
    assert told == 2, output


@pytest.mark.parametrize("where", [SHM, TCP], ids=lambda where: where.name)
def test_ctrl_c_ends_whatever_wait_at_once(where: Where) -> None:
    told, output = survivors(where, 2, "interrupted")
    assert told == 2, output


def test_a_time_limit_of_one_call() -> None:
    told, output = survivors(SHM, 2, "timing_out")
    assert told == 2, output


def test_another_thread_aborts() -> None:
    told, output = survivors(SHM, 2, "aborted")
    assert told == 2, output
