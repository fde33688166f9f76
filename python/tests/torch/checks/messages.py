"""Messages: tags, any source, batches."""

from __future__ import annotations

import torch
import torch.distributed as dist

import tbccl

from checks.common import given, raises, rank, same, size, strided


def check_messages_with_tags() -> None:
    neighbour, other = (rank + 1) % size, (rank - 1) % size
    works = [dist.isend(given(rank, (4,), salt=tag), neighbour, tag=tag) for tag in (3, 1, 2)]
    for tag in (2, 3, 1):
        tensor = torch.empty(4)
        assert dist.recv(tensor, other, tag=tag) == other
        same(tensor, given(other, (4,), salt=tag), tag)
    for work in works:
        work.wait()


def check_messages_of_many_lengths() -> None:
    neighbour, other = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, 1000, 100_000, 1 << 20):
        for dtype in (torch.float32, torch.bfloat16, torch.float8_e5m2):
            tensor = torch.empty(count, dtype=dtype)
            receiving = dist.irecv(tensor, other)
            sending = dist.isend(given(rank, (count,)).to(dtype), neighbour)
            sending.wait()
            receiving.wait()
            same(tensor, given(other, (count,)).to(dtype), (count, dtype))


def check_messages_from_anyone() -> None:
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            tensor = torch.empty(3)
            source = dist.recv(tensor)
            same(tensor, given(source, (3,)))
            seen.add(source)
        assert seen == set(range(1, size))
        tensor = torch.empty(1)
        work = dist.irecv(tensor, tag=9)
        work.wait()
        assert work._source_rank() == size - 1
    else:
        dist.send(given(rank, (3,)), 0)
        if rank == size - 1:
            dist.send(torch.ones(1), 0, tag=9)
    # Else a message of the next check might be the one that anyone has sent.
    dist.barrier()


def check_messages_to_oneself() -> None:
    tensor = torch.empty(5)
    receiving = dist.irecv(tensor, rank)
    dist.isend(given(rank, (5,)), rank).wait()
    receiving.wait()
    same(tensor, given(rank, (5,)))


def check_messages_not_in_one_piece() -> None:
    tensor = strided(torch.zeros(2, 3))
    receiving = dist.irecv(tensor, (rank - 1) % size)
    dist.isend(strided(given(rank, (2, 3))), (rank + 1) % size).wait()
    receiving.wait()
    assert torch.equal(tensor, given((rank - 1) % size, (2, 3)))


def check_batches_of_messages() -> None:
    neighbour, other = (rank + 1) % size, (rank - 1) % size
    one, two = torch.empty(6), torch.empty(2, 2)
    operations = [
        dist.P2POp(dist.irecv, one, other),
        dist.P2POp(dist.irecv, two, other, tag=4),
        dist.P2POp(dist.isend, given(rank, (2, 2)), neighbour, tag=4),
        dist.P2POp(dist.isend, given(rank, (6,)), neighbour),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    same(one, given(other, (6,)))
    same(two, given(other, (2, 2)))


def check_a_message_of_another_length_is_told() -> None:
    if rank == 0:
        dist.send(torch.ones(3), 1, tag=21)
        dist.send(torch.ones(3), 1, tag=22)
    elif rank == 1:
        raises(tbccl.Error, "12", lambda: dist.recv(torch.empty(5), 0, tag=21))
        raises(tbccl.Error, "12", lambda: dist.recv(torch.empty(2), 0, tag=22))
    dist.barrier()
