"""Ranks that are killed, and calls that can't be: an exception that says who and why, in time, and nothing that is left."""

import jobs
import pytest

PROGRAM = jobs.RANKS / "failing.py"


def fail(role, ranks=3, env=None, **how):
    return jobs.run(ranks, PROGRAM, role, env=env, **how)


def raised(done):
    """By rank: when it was raised, and what."""
    found = {}
    for line in done.lines("@raised"):
        _, rank, when, kind, words = line.split(" ", 4)
        found[int(rank)] = (float(when), kind, words)
    return found


ROLES = ["killed_in_a_step", "killed_before_a_message", "killed_in_a_group", "killed_before_a_split"]


@jobs.raises
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_others_are_told_who_was_killed(role, transport):
    done = fail(role, env={"TBCCL_TRANSPORT": transport}, options=("--keep-going",))
    died = float(done.lines("@died")[0].split(" ")[2])
    found = raised(done)
    assert sorted(found) == [0, 2], done.out + done.err
    for when, kind, words in found.values():
        assert kind == "RuntimeError" and "[tbccl] MPI_" in words
        assert "rank 1" in words, words
        assert when - died < 3, (when - died, words)
    for line in done.lines("@again"):
        assert float(line.split(" ")[2]) < 0.5, line
    assert done.code != 0


def test_the_launcher_says_who_was_killed():
    done = fail("killed_in_a_step")
    assert done.code == 128 + 9, done.err
    assert "rank 1" in done.err and "SIGKILL" in done.err, done.err


@pytest.mark.skipif(jobs.VERSION >= (0, 32, 1), reason="this version of MLX raises an exception")
@pytest.mark.parametrize("role", ROLES)
def test_an_older_mlx_ends_the_others_with_the_same_words(role):
    done = fail(role, options=("--keep-going",))
    told = [line for line in (done.err + done.out).splitlines() if "[tbccl] MPI_" in line]
    assert len(told) == 2 and all("rank 1" in line for line in told), done.out + done.err
    assert done.code != 0 and done.seconds < 20


@jobs.raises
@pytest.mark.parametrize(
    ("role", "words"),
    [
        ("different_sizes", ["disagree on call", "of 3 f32", "of 4 f32"]),
        ("different_calls", ["disagree on call", "all_reduce", "all_gather"]),
        ("too_long_a_message", ["40", "16", "rank 1"]),
        ("sum_scatter", ["sum_scatter"]),
    ],
)
def test_what_can_not_be_is_said(role, words):
    done = fail(role, ranks=2, options=("--keep-going",))
    said = done.out + done.err
    for part in words:
        assert part in said, said
    assert raised(done), said


@pytest.mark.skipif(jobs.VERSION < (0, 32, 1), reason="it hangs with MLX 0.29, and nobody has found out why")
def test_a_child_that_was_forked_does_its_parent_no_harm():
    done = fail("forked", ranks=2).well()
    assert [line.split(" ")[2] for line in done.lines("@sum")] == ["2.0", "2.0"], done.out
    assert all("forked" in line for line in done.lines("@child")) and len(done.lines("@child")) == 2, done.out


@jobs.raises
def test_a_rank_that_leaves_is_missed():
    done = fail("exits_early", ranks=2, options=("--keep-going",))
    (_, kind, words) = raised(done)[0]
    assert kind == "RuntimeError" and "rank 1" in words and "without taking part" in words, words


def test_a_message_that_nobody_takes_holds_nobody_up():
    done = fail("nobody_takes_it", ranks=2).well()
    assert done.seconds < 20, done.seconds


def test_a_message_outlives_its_sender_s_program():
    done = fail("taken_after_the_sender_has_done_all_else", ranks=2).well()
    assert [line.split(" ")[2] for line in done.lines("@got")] == ["7.0"], done.out
