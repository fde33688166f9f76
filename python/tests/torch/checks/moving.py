"""Operations that move tensors: broadcast, gather, scatter, all-to-all, objects."""

from __future__ import annotations

import torch
import torch.distributed as dist

from checks.common import FLOATS, INTEGERS, EIGHTS, COMPLEX, MOVED_ALONE, given, rank, same, size, strided


def check_broadcast_of_every_type() -> None:
    for dtype in (*FLOATS, *INTEGERS, *EIGHTS, *COMPLEX, *MOVED_ALONE, torch.bool):
        for root in (0, size - 1):
            tensor = given(rank).to(dtype)
            dist.broadcast(tensor, root)
            same(tensor, given(root).to(dtype), (dtype, root))
    tensor = strided(given(rank))
    dist.broadcast(tensor, 1)
    assert torch.equal(tensor, given(1))


def check_all_gather() -> None:
    every = torch.stack([given(each, (2, 3)) for each in range(size)])
    outputs = [torch.empty(2, 3) for _ in range(size)]
    dist.all_gather(outputs, given(rank, (2, 3)))
    same(torch.stack(outputs), every)
    outputs = list(torch.empty(size, 2, 3).unbind())
    dist.all_gather(outputs, given(rank, (2, 3)), async_op=True).wait()
    same(torch.stack(outputs), every)
    outputs = [strided(torch.zeros(2, 3)) for _ in range(size)]
    dist.all_gather(outputs, strided(given(rank, (2, 3))))
    assert torch.equal(torch.stack(outputs), every)
    for dtype in (torch.float32, torch.float8_e5m2, torch.complex64, torch.bool):
        output = torch.empty(size, 2, 3, dtype=dtype)
        dist.all_gather_into_tensor(output, given(rank, (2, 3)).to(dtype))
        same(output, every.to(dtype), dtype)
    output[rank] = given(rank, (2, 3)).to(dtype)
    dist.all_gather_into_tensor(output, output[rank])
    same(output, every.to(dtype), "in place")


def check_all_gather_of_unequal_lengths() -> None:
    outputs = [torch.empty(each + 1) for each in range(size)]
    dist.all_gather(outputs, given(rank, (rank + 1,)))
    for each, output in enumerate(outputs):
        same(output, given(each, (each + 1,)))


def check_gather_and_scatter() -> None:
    every = [given(each, (3, 2)) for each in range(size)]
    for root in range(size):
        outputs = [torch.empty(3, 2) for _ in range(size)] if rank == root else None
        dist.gather(given(rank, (3, 2)), outputs, root)
        for output, expected in zip(outputs or [], every):
            same(output, expected)
        output = torch.empty(3, 2)
        dist.scatter(output, every if rank == root else None, root)
        same(output, every[rank])
        output = strided(torch.empty(3, 2))
        dist.scatter(output, [strided(each) for each in every] if rank == root else None, root)
        assert torch.equal(output, every[rank])
    if hasattr(dist, "gather_single"):
        output = torch.empty(size, 3, 2) if rank == 1 else None
        dist.gather_single(given(rank, (3, 2)), output, 1)
        if rank == 1:
            same(output, torch.stack(every))


def check_all_to_all() -> None:
    table = lambda of: given(of, (size, 3))  # noqa: E731
    expected = torch.stack([table(each)[rank] for each in range(size)])
    output = torch.empty(size, 3)
    dist.all_to_all_single(output, table(rank))
    same(output, expected)
    outputs = [torch.empty(3) for _ in range(size)]
    dist.all_to_all(outputs, [row.clone() for row in table(rank)])
    same(torch.stack(outputs), expected)
    same_tensor = table(rank)
    dist.all_to_all_single(same_tensor, same_tensor)
    same(same_tensor, expected, "from and to the same memory")


def check_all_to_all_of_unequal_lengths() -> None:
    # Rank r sends r + s rows to rank s.
    rows = [rank + each for each in range(size)]
    given_rows = lambda of: given(of, (sum(of + each for each in range(size)), 2), torch.float64)  # noqa: E731
    expected = torch.cat([given_rows(each).split([each + other for other in range(size)])[rank] for each in range(size)])
    output = torch.empty(sum(rows), 2, dtype=torch.float64)
    dist.all_to_all_single(output, given_rows(rank), rows, rows)
    same(output, expected)
    outputs = [torch.empty(count, 2, dtype=torch.float64) for count in rows]
    dist.all_to_all(outputs, list(given_rows(rank).split(rows)))
    same(torch.cat(outputs), expected)


def check_object_collectives() -> None:
    objects: list[object] = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * (1000 * rank)})
    assert [each["rank"] for each in objects] == list(range(size))
    objects = [rank, "of the last", [rank]] if rank == size - 1 else [None] * 3
    dist.broadcast_object_list(objects, size - 1)
    assert objects == [size - 1, "of the last", [size - 1]], objects
    gathered: list[object] | None = [None] * size if rank == 0 else None
    dist.gather_object(("from", rank), gathered, 0)
    assert rank != 0 or gathered == [("from", each) for each in range(size)]
    own: list[object] = [None]
    dist.scatter_object_list(own, [{"for": each} for each in range(size)] if rank == 1 else None, 1)
    assert own == [{"for": rank}], own
