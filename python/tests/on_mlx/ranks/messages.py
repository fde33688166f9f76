"""Messages between ranks."""

from __future__ import annotations

import mlx.core as mx
from checking import DTYPES, assert_equal, check_all, contribution, rank, ranks, world

RIGHT, LEFT = (rank + 1) % ranks, (rank - 1) % ranks


def check_every_type_and_shape_goes_round_the_circle():
    for dtype in DTYPES:
        for shape in ((), (1,), (7,), (33, 65)):
            own, expected = contribution(rank, shape, dtype), contribution(LEFT, shape, dtype)
            if rank % 2 == 0:
                mx.eval(mx.distributed.send(own, RIGHT))
                result = mx.distributed.recv(shape, dtype, LEFT)
                mx.eval(result)
            else:
                result = mx.distributed.recv_like(own, LEFT)
                mx.eval(result)
                mx.eval(mx.distributed.send(own, RIGHT))
            assert_equal(result, expected)


def check_both_ends_may_send_first():
    # Below and above the size that a library would buffer for a receive that is not posted yet.
    for count in (1, 1000, 1 << 16, 1 << 22):
        own = mx.full((count,), rank, dtype=mx.float32)
        sent = mx.distributed.send(own, RIGHT)
        mx.eval(sent)
        result = mx.distributed.recv_like(own, LEFT)
        assert_equal(result, mx.full((count,), LEFT, dtype=mx.float32))


def check_messages_keep_their_order():
    # Within one evaluation MLX would choose the order.
    for turn in range(50):
        mx.eval(mx.distributed.send(mx.array([float(turn)] * (1 + 997 * (turn % 7))), RIGHT))
    for turn in range(50):
        result = mx.distributed.recv((1 + 997 * (turn % 7),), mx.float32, LEFT)
        assert result[-1].item() == turn


def check_sending_gives_what_was_sent():
    x = contribution(rank, (20,), mx.float32)
    assert_equal(mx.distributed.send(x * 2, RIGHT) + 1, x * 2 + 1)
    assert_equal(mx.distributed.recv_like(x, LEFT), contribution(LEFT, (20,), mx.float32) * 2)


def check_what_is_received_is_computed_with_in_the_same_evaluation():
    x = mx.full((5, 5), rank, dtype=mx.float32)
    y = mx.ones((5, 5)) + 2
    if rank % 2 == 0 and rank + 1 < ranks:
        z = mx.distributed.send(x * 2, rank + 1)
        mx.eval(y, z)
    elif rank % 2 == 1:
        z = mx.distributed.recv_like(x, rank - 1) + y
        mx.eval(y, z)
        assert_equal(z, mx.full((5, 5), (rank - 1) * 2 + 3, dtype=mx.float32))


def check_back_and_forth_in_pairs():
    pair = world.split(rank // 2)
    if pair.size() < 2:
        return
    other, is_sender = 1 - pair.rank(), pair.rank() == 0
    x = mx.ones(10)
    for _ in range(10):
        if is_sender:
            mx.eval(mx.distributed.send(2 * x, other, group=pair))
        else:
            x = mx.distributed.recv_like(x, other, group=pair)
            mx.eval(x)
        is_sender = not is_sender
    assert_equal(x, mx.full((10,), 1024.0 if pair.rank() == 0 else 512.0))


def check_groups_do_not_take_each_others_messages():
    backwards = world.split(0, key=-rank)
    me = backwards.rank()
    right, left = (me + 1) % ranks, (me - 1) % ranks
    mx.eval(mx.distributed.send(mx.array([100.0 + rank]), RIGHT))
    mx.eval(mx.distributed.send(mx.array([200.0 + me]), right, group=backwards))
    in_group = mx.distributed.recv((1,), mx.float32, left, group=backwards)
    in_world = mx.distributed.recv((1,), mx.float32, LEFT)
    assert (in_group.item(), in_world.item()) == (200.0 + left, 100.0 + LEFT)


def check_messages_beside_collectives():
    stream = mx.new_stream(mx.cpu)
    for turn in range(10):
        x = mx.full((1 << 16,), turn, dtype=mx.float32)
        total = mx.distributed.all_sum(x)
        sent = mx.distributed.send(x + rank, RIGHT, stream=stream)
        mx.async_eval(sent, total)
        result = mx.distributed.recv_like(x, LEFT, stream=stream)
        assert result[0].item() == turn + LEFT and total[0].item() == turn * ranks


check_all(globals())
