"""Tagged messages, receives from any source, and batches."""

from __future__ import annotations

import torch
import torch.distributed as dist

import tbccl

from checks.common import assert_equal, data_of, raises, rank, size, strided


def check_messages_with_tags() -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    works = [dist.isend(data_of(rank, (4,), seed=tag), right, tag=tag) for tag in (3, 1, 2)]
    for tag in (2, 3, 1):
        tensor = torch.empty(4)
        assert dist.recv(tensor, left, tag=tag) == left
        assert_equal(tensor, data_of(left, (4,), seed=tag), tag)
    for work in works:
        work.wait()


def check_messages_of_many_lengths() -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, 1000, 100_000, 1 << 20):
        for dtype in (torch.float32, torch.bfloat16, torch.float8_e5m2):
            tensor = torch.empty(count, dtype=dtype)
            receiving = dist.irecv(tensor, left)
            sending = dist.isend(data_of(rank, (count,)).to(dtype), right)
            sending.wait()
            receiving.wait()
            assert_equal(tensor, data_of(left, (count,)).to(dtype), (count, dtype))


def check_messages_from_anyone() -> None:
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            tensor = torch.empty(3)
            source = dist.recv(tensor)
            assert_equal(tensor, data_of(source, (3,)))
            seen.add(source)
        assert seen == set(range(1, size))
        tensor = torch.empty(1)
        work = dist.irecv(tensor, tag=9)
        work.wait()
        assert work._source_rank() == size - 1
    else:
        dist.send(data_of(rank, (3,)), 0)
        if rank == size - 1:
            dist.send(torch.ones(1), 0, tag=9)
    # Otherwise a receive from any source could match a message of the next check.
    dist.barrier()


def check_messages_to_oneself() -> None:
    tensor = torch.empty(5)
    receiving = dist.irecv(tensor, rank)
    dist.isend(data_of(rank, (5,)), rank).wait()
    receiving.wait()
    assert_equal(tensor, data_of(rank, (5,)))


def check_messages_not_in_one_piece() -> None:
    tensor = strided(torch.zeros(2, 3))
    receiving = dist.irecv(tensor, (rank - 1) % size)
    dist.isend(strided(data_of(rank, (2, 3))), (rank + 1) % size).wait()
    receiving.wait()
    assert torch.equal(tensor, data_of((rank - 1) % size, (2, 3)))


def check_batches_of_messages() -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    one, two = torch.empty(6), torch.empty(2, 2)
    operations = [
        dist.P2POp(dist.irecv, one, left),
        dist.P2POp(dist.irecv, two, left, tag=4),
        dist.P2POp(dist.isend, data_of(rank, (2, 2)), right, tag=4),
        dist.P2POp(dist.isend, data_of(rank, (6,)), right),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert_equal(one, data_of(left, (6,)))
    assert_equal(two, data_of(left, (2, 2)))


def check_a_message_of_another_length_is_told() -> None:
    if rank == 0:
        dist.send(torch.ones(3), 1, tag=21)
        dist.send(torch.ones(3), 1, tag=22)
    elif rank == 1:
        raises(tbccl.Error, "12", lambda: dist.recv(torch.empty(5), 0, tag=21))
        raises(tbccl.Error, "12", lambda: dist.recv(torch.empty(2), 0, tag=22))
    dist.barrier()
