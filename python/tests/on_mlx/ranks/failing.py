"""Ranks that fail in different ways; the other ranks print the errors that they get."""

from __future__ import annotations

import os
import signal
import sys
import time

import mlx.core as mx

import tbccl.mlx

world = tbccl.mlx.init()
rank, ranks = world.rank(), world.size()
role = sys.argv[1]


def report(word: str, text: object = "") -> None:
    os.write(1, f"@{word} {rank} {text}\n".encode())


def die() -> None:
    report("died", time.time())
    os.kill(os.getpid(), signal.SIGKILL)


def run_steps(last: int) -> None:
    """Runs steps like those of training: computation, a sum and a gather; rank 1 dies in step `last`."""
    x = mx.random.normal((256, 256))
    for step in range(10**9):
        y = mx.distributed.all_sum((x @ x).mean(axis=0)) / ranks
        z = mx.distributed.all_gather(y[:8])
        if rank == 1 and step == last:
            mx.async_eval(z)
            die()
        mx.eval(y, z)


def killed_in_a_step() -> None:
    run_steps(20)


def killed_before_a_message() -> None:
    mx.eval(mx.distributed.all_sum(mx.ones(1)))
    if rank == 1:
        time.sleep(0.2)
        die()
    mx.eval(mx.distributed.recv((4,), mx.float32, 1))


def killed_in_a_group() -> None:
    group = world.split(0, key=-rank)
    mx.eval(mx.distributed.all_sum(mx.ones(1), group=group))
    if rank == 1:
        die()
    mx.eval(mx.distributed.all_sum(mx.ones(1), group=group))


def killed_before_a_split() -> None:
    mx.eval(mx.distributed.all_sum(mx.ones(1)))
    if rank == 1:
        die()
    world.split(0)


def streams_in_different_order() -> None:
    order = [mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)]
    if rank == 1:
        order.reverse()
    for step in range(1000):
        y = mx.distributed.all_sum(mx.ones(100 + step), stream=order[0])
        z = mx.distributed.all_gather(mx.ones(7), stream=order[1])
        mx.async_eval(*((z, y) if rank == 1 else (y, z)))
        mx.eval(y, z)


def different_sizes() -> None:
    mx.eval(mx.distributed.all_sum(mx.ones(3 + rank)))


def different_calls() -> None:
    if rank == 1:
        mx.eval(mx.distributed.all_gather(mx.ones(4)))
    mx.eval(mx.distributed.all_sum(mx.ones(4)))


def too_long_a_message() -> None:
    if rank == 1:
        mx.eval(mx.distributed.send(mx.ones(10), 0))
        return
    mx.eval(mx.distributed.recv((4,), mx.float32, 1))


def nobody_takes_it() -> None:
    mx.eval(mx.distributed.send(mx.ones(1 << 20), 1 - rank))


def taken_after_the_sender_has_done_all_else() -> None:
    if rank == 0:
        mx.eval(mx.distributed.send(mx.full((1 << 20,), 7.0), 1))
    else:
        time.sleep(1)
        report("got", mx.distributed.recv((1 << 20,), mx.float32, 0)[-1].item())


def sum_scatter() -> None:
    mx.eval(mx.distributed.sum_scatter(mx.ones(ranks)))


def leave_child() -> None:
    """Ends a forked child. Before MLX 0.31.2 an exit waits for threads that only the parent has."""
    is_stuck = tuple(map(int, mx.__version__.split(".")[:3])) < (0, 31, 2)
    (os._exit if is_stuck else sys.exit)(0)


def forked() -> None:
    mx.eval(mx.distributed.all_sum(mx.ones(1)))
    child = os.fork()
    if child == 0:
        # MLX's threads do not exist in a child, and splitting a group needs none of them.
        try:
            world.split(0)
        except RuntimeError as error:
            report("child", error)
        leave_child()
    os.waitpid(child, 0)
    report("sum", mx.distributed.all_sum(mx.ones(1)).item())


def exits_early() -> None:
    if rank == 1:
        sys.exit(0)
    mx.eval(mx.distributed.all_sum(mx.ones(1)))


try:
    globals()[role]()
except RuntimeError as error:
    report("raised", f"{time.time()} {type(error).__name__} {error}")
    # Calls after a failure fail too, and at once.
    began = time.monotonic()
    if role.startswith("killed") and role != "killed_before_a_split":
        try:
            mx.eval(mx.distributed.all_sum(mx.ones(1)))
        except RuntimeError:
            report("again", time.monotonic() - began)
    sys.exit(3)
report("over")
