"""Ranks that leave while calls of theirs, or of their peers, are in flight."""

from __future__ import annotations

import os
import sys
import time

import mlx.core as mx

import tbccl.mlx

world = tbccl.mlx.init()
rank, ranks = world.rank(), world.size()
role = sys.argv[1]


def report(word: str, text: object = "") -> None:
    os.write(1, f"@{word} {rank} {text}\n".encode())


def after_a_while() -> mx.array:
    """Returns an array of ones that takes some tenths of a second to compute."""
    x = mx.random.uniform(shape=(300, 300))
    for _ in range(40):
        x = mx.tanh(x @ x)
    return mx.ones(1000) + 0 * x[0, 0]


def a_message_in_flight() -> None:
    """All ranks but the first leave before they send."""
    if rank > 0:
        mx.async_eval(mx.distributed.send(after_a_while() * rank, 0))
        return
    received = [mx.distributed.recv((1000,), mx.float32, peer) for peer in range(1, ranks)]
    mx.eval(received)
    report("sum", sum(x.sum().item() for x in received))


def a_sum_in_flight() -> None:
    """All ranks but the first leave before they take part in a sum."""
    y = mx.distributed.all_sum(after_a_while())
    if rank > 0:
        mx.async_eval(y)
    else:
        report("sum", y.sum().item())


def a_step_ahead() -> None:
    """Each rank of a pipeline computes one step more than the program reads, as mlx-lm does."""
    following = None
    for step in range(6):
        if rank > 0:
            x = mx.distributed.recv((1000,), mx.float32, rank - 1)
        else:
            x = after_a_while() * step
        if rank + 1 < ranks:
            x = mx.distributed.send(x + 1, rank + 1)
        present, following = following, mx.distributed.all_gather(x[:1])
        mx.async_eval(following)
        if present is not None:
            mx.eval(present)
    report("step", present.tolist())


def never() -> None:
    """Rank 1 leaves without the call that the others make."""
    mx.eval(mx.distributed.all_sum(mx.ones(1)))
    if rank == 1:
        return
    began = time.time()
    try:
        mx.eval(mx.distributed.all_sum(mx.ones(1)))
    except RuntimeError as error:
        report("raised", f"{time.time() - began} {error}")


def work_goes_on() -> None:
    """Rank 0 works on in a group without rank 1, which leaves."""
    group = world.split(int(rank == 1))
    if rank == 1:
        return
    for _ in range(25):
        time.sleep(0.2)
        mx.eval(mx.distributed.all_sum(mx.ones(1), group=group))
    report("sum", mx.distributed.all_sum(mx.ones(1), group=group).item())


globals()[role]()
