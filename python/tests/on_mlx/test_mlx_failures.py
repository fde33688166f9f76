"""Killed ranks and invalid calls: a prompt exception that names the rank, and no leftover process."""

import jobs
import pytest

PROGRAM = jobs.RANKS / "failing.py"


def fail(role, ranks=3, env=None, **how):
    return jobs.run(ranks, PROGRAM, role, env=env, **how)


def exceptions_by_rank(result):
    """Returns the time, type and message of each rank's exception."""
    exceptions = {}
    for line in result.lines("@raised"):
        _, rank, when, kind, message = line.split(" ", 4)
        exceptions[int(rank)] = (float(when), kind, message)
    return exceptions


ROLES = ["killed_in_a_step", "killed_before_a_message", "killed_in_a_group", "killed_before_a_split"]


@jobs.requires_exceptions
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_others_are_told_who_was_killed(role, transport):
    result = fail(role, env={"TBCCL_TRANSPORT": transport}, options=("--keep-going",))
    died = float(result.lines("@died")[0].split(" ")[2])
    exceptions = exceptions_by_rank(result)
    assert sorted(exceptions) == [0, 2], result.out + result.err
    for when, kind, message in exceptions.values():
        assert kind == "RuntimeError" and "[tbccl] MPI_" in message
        assert "rank 1" in message, message
        assert when - died < 3, (when - died, message)
    for line in result.lines("@again"):
        assert float(line.split(" ")[2]) < 0.5, line
    assert result.code != 0


def test_the_launcher_says_who_was_killed():
    result = fail("killed_in_a_step")
    assert result.code == 128 + 9, result.err
    assert "rank 1" in result.err and "SIGKILL" in result.err, result.err


@pytest.mark.skipif(jobs.VERSION >= (0, 32, 1), reason="this version of MLX raises an exception")
@pytest.mark.parametrize("role", ROLES)
def test_an_older_mlx_ends_the_others_with_the_same_words(role):
    result = fail(role, options=("--keep-going",))
    messages = [line for line in (result.err + result.out).splitlines() if "[tbccl] MPI_" in line]
    assert len(messages) == 2 and all("rank 1" in line for line in messages), result.out + result.err
    assert result.code != 0 and result.seconds < 20


@jobs.requires_exceptions
@pytest.mark.parametrize(
    ("role", "message_parts"),
    [
        ("different_sizes", ["disagree on call", "of 3 f32", "of 4 f32"]),
        ("different_calls", ["disagree on call", "all_reduce", "all_gather"]),
        ("streams_in_different_order", ["disagree on call", "all_reduce", "all_gather"]),
        ("too_long_a_message", ["40", "16", "rank 1"]),
        ("sum_scatter", ["sum_scatter"]),
    ],
)
def test_what_can_not_be_is_said(role, message_parts):
    result = fail(role, ranks=2, options=("--keep-going",))
    output = result.out + result.err
    for part in message_parts:
        assert part in output, output
    assert exceptions_by_rank(result), output


def test_a_child_that_was_forked_does_its_parent_no_harm():
    result = fail("forked", ranks=2).expect_success()
    assert [line.split(" ")[2] for line in result.lines("@sum")] == ["2.0", "2.0"], result.out
    refused = result.lines("@child")
    assert len(refused) == 2 and all("forked" in line for line in refused), result.out


@jobs.requires_exceptions
def test_a_rank_that_leaves_is_missed():
    result = fail("exits_early", ranks=2, options=("--keep-going",))
    (_, kind, message) = exceptions_by_rank(result)[0]
    assert kind == "RuntimeError" and "rank 1" in message and "without taking part" in message, message


def test_a_message_that_nobody_takes_holds_nobody_up():
    result = fail("nobody_takes_it", ranks=2).expect_success()
    assert result.seconds < 20, result.seconds


def test_a_message_outlives_its_sender_s_program():
    result = fail("taken_after_the_sender_has_done_all_else", ranks=2).expect_success()
    assert [line.split(" ")[2] for line in result.lines("@got")] == ["7.0"], result.out
