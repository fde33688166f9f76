"""Groups derived by splits, and collectives in several groups at a time."""

from __future__ import annotations

import mlx.core as mx
from checking import assert_equal, check_all, contribution, rank, ranks, world


def total(group: mx.distributed.Group, x: float) -> float:
    return mx.distributed.all_sum(mx.array([x]), group=group).item()


def check_the_world_is_one():
    again = mx.distributed.init()
    assert (again.rank(), again.size()) == (rank, ranks)
    assert mx.distributed.init(backend="mpi").size() == ranks


def check_colours_and_keys():
    halves = world.split(rank % 2)
    members = [index for index in range(ranks) if index % 2 == rank % 2]
    assert halves.size() == len(members) and members[halves.rank()] == rank
    if halves.size() > 1:
        assert total(halves, float(rank)) == sum(members)
    backwards = world.split(7, key=ranks - rank)
    assert backwards.rank() == ranks - 1 - rank
    gathered = mx.distributed.all_gather(mx.array([rank]), group=backwards)
    assert gathered.tolist() == list(reversed(range(ranks)))


def check_groups_of_groups():
    group = world
    members = list(range(ranks))
    while group.size() > 1:
        lower = group.rank() < (group.size() + 1) // 2
        half = (len(members) + 1) // 2
        members = members[:half] if lower else members[half:]
        group = group.split(0 if lower else 1)
        assert members[group.rank()] == rank
        if group.size() > 1:
            assert total(group, float(rank)) == sum(members)


def check_a_group_of_one():
    alone = world.split(rank)
    assert (alone.rank(), alone.size()) == (0, 1)
    x = contribution(rank, (5,), mx.float32)
    assert_equal(mx.distributed.all_sum(x, group=alone), x)
    assert_equal(mx.distributed.all_gather(x, group=alone), x)


def check_groups_that_are_freed_before_their_calls():
    # The last reference to each group is that of the sum, which MLX drops once it has queued the sum.
    x = mx.random.uniform(shape=(500, 500))
    for _ in range(20):
        x = mx.tanh(x @ x)
    ones = mx.ones(100) + 0 * x[0, 0]
    sums = [mx.distributed.all_sum(ones * step, group=world.split(0)) for step in range(8)]
    mx.async_eval(*sums)
    assert [y[0].item() for y in sums] == [step * ranks for step in range(8)]


def check_more_freed_groups_than_are_kept():
    for step in range(40):
        assert total(world.split(0), step) == step * ranks


def check_rows_and_columns():
    if ranks % 2:
        return
    row, column = world.split(rank // 2), world.split(rank % 2)
    x = mx.full((1, 8), rank, dtype=mx.float32)
    row_sums = mx.distributed.all_sum(x, group=row)
    gathered = mx.distributed.all_gather(row_sums, group=column)
    expected = mx.array([[float(4 * at + 1)] * 8 for at in range(ranks // 2)])
    assert_equal(gathered, expected)


def check_splits_beside_collectives():
    # Some ranks split before their collectives run, and some after.
    for turn in range(5):
        x = mx.full((1 << 18,), turn + rank, dtype=mx.float32)
        y = mx.distributed.all_sum(x)
        mx.async_eval(y)
        if (rank + turn) % 2:
            mx.eval(y)
        group = world.split(0)
        assert group.size() == ranks
        assert y[0].item() == ranks * turn + sum(range(ranks))
        assert total(group, 1.0) == ranks


def check_groups_come_and_go():
    for turn in range(12):
        group = world.split(turn % 3)
        assert total(group, float(turn)) == ranks * turn
        del group


def check_groups_in_one_evaluation():
    first, second = world.split(0), world.split(1, key=-rank)
    x = contribution(rank, (100,), mx.float32)
    result = [mx.distributed.all_sum(x, group=group) for group in (world, first, second, first, world)]
    mx.eval(result)
    for other in result[1:]:
        assert_equal(other, result[0])


check_all(globals())
