"""Ranks leave while calls are in flight: what was queued before is done, and nobody waits in vain."""

import jobs
import pytest

PROGRAM = jobs.RANKS / "leaving.py"


def leave(role, ranks, transport="shm"):
    return jobs.run(ranks, PROGRAM, role, env={"TBCCL_TRANSPORT": transport})


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("role", ["a_message_in_flight", "a_sum_in_flight"])
def test_a_rank_leaves_after_what_it_has_queued(role, transport):
    result = leave(role, 3, transport).expect_success()
    assert [line.split(" ")[2] for line in result.lines("@sum")] == ["3000.0"], result.out


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_pipeline_ends_one_step_ahead(ranks):
    result = leave("a_step_ahead", ranks).expect_success()
    assert len(result.lines("@step")) == ranks, result.out


@jobs.requires_exceptions
def test_a_rank_that_never_makes_the_call_is_named_in_time():
    result = leave("never", 3).expect_success()
    raised = [line.split(" ", 3) for line in result.lines("@raised")]
    assert sorted(fields[1] for fields in raised) == ["0", "2"], result.out
    for _, _, seconds, message in raised:
        assert float(seconds) < 8 and "rank 1" in message, (seconds, message)


def test_a_rank_leaves_while_others_work_on():
    result = leave("work_goes_on", 3).expect_success()
    assert [line.split(" ")[2] for line in result.lines("@sum")] == ["2.0", "2.0"], result.out
