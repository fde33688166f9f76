"""Operations that move data: broadcast, gather, scatter, all-to-all, and collectives of objects."""

from __future__ import annotations

import torch
import torch.distributed as dist

from checks.common import (
    COMPLEX,
    FLOAT8,
    FLOATS,
    INTEGERS,
    MOVE_ONLY,
    assert_equal,
    data_of,
    rank,
    size,
    strided,
    total,
)


def check_broadcast_of_every_type() -> None:
    for dtype in (*FLOATS, *INTEGERS, *FLOAT8, *COMPLEX, *MOVE_ONLY, torch.bool):
        for root in (0, size - 1):
            tensor = data_of(rank).to(dtype)
            dist.broadcast(tensor, root)
            assert_equal(tensor, data_of(root).to(dtype), (dtype, root))
    tensor = strided(data_of(rank))
    dist.broadcast(tensor, 1)
    assert torch.equal(tensor, data_of(1))


def check_all_gather() -> None:
    expected = torch.stack([data_of(each, (2, 3)) for each in range(size)])
    outputs = [torch.empty(2, 3) for _ in range(size)]
    dist.all_gather(outputs, data_of(rank, (2, 3)))
    assert_equal(torch.stack(outputs), expected)
    outputs = list(torch.empty(size, 2, 3).unbind())
    dist.all_gather(outputs, data_of(rank, (2, 3)), async_op=True).wait()
    assert_equal(torch.stack(outputs), expected)
    outputs = [strided(torch.zeros(2, 3)) for _ in range(size)]
    dist.all_gather(outputs, strided(data_of(rank, (2, 3))))
    assert torch.equal(torch.stack(outputs), expected)
    for dtype in (torch.float32, torch.float8_e5m2, torch.complex64, torch.bool):
        output = torch.empty(size, 2, 3, dtype=dtype)
        dist.all_gather_into_tensor(output, data_of(rank, (2, 3)).to(dtype))
        assert_equal(output, expected.to(dtype), dtype)
    output[rank] = data_of(rank, (2, 3)).to(dtype)
    dist.all_gather_into_tensor(output, output[rank])
    assert_equal(output, expected.to(dtype), "in place")


def check_all_gather_of_unequal_lengths() -> None:
    outputs = [torch.empty(each + 1) for each in range(size)]
    dist.all_gather(outputs, data_of(rank, (rank + 1,)))
    for each, output in enumerate(outputs):
        assert_equal(output, data_of(each, (each + 1,)))


def check_lists_of_tensors_whose_storages_are_neighbors() -> None:
    memory = data_of(rank, (2 * size,)).numpy()
    # Each list has its tensors at consecutive addresses, but in no storage that holds all of them.
    separate = [torch.from_numpy(memory[2 * each : 2 * each + 2]) for each in range(size)]
    of_one_address = [torch.from_numpy(memory[: 2 * each + 2])[2 * each :] for each in range(size)]
    for outputs in (separate, of_one_address):
        dist.all_gather(outputs, data_of(rank, (2,)))
        for each, output in enumerate(outputs):
            assert_equal(output, data_of(each, (2,)))
        block = torch.empty(2)
        dist.reduce_scatter(block, outputs)
        assert_equal(block, size * data_of(rank, (2,)))
    # One storage holds all of these, beside other elements.
    outputs = list(torch.full((size + 1, 3), -1.0)[1:].unbind())
    dist.all_gather(outputs, data_of(rank, (3,)))
    assert_equal(torch.stack(outputs), torch.stack([data_of(each, (3,)) for each in range(size)]))


def check_views_that_torch_computes_when_it_reads_them() -> None:
    """Conjugated and negated views have the memory of other elements."""
    for view_of, values_of in ((torch.conj, torch.conj_physical), (torch._neg_view, torch.neg)):
        memory = data_of(rank, (4,), torch.complex64) if rank == 0 else torch.zeros(4, dtype=torch.complex64)
        tensor = view_of(memory)
        # `dist.broadcast` itself refuses conjugated views.
        dist.group.WORLD.broadcast(tensor, 0).wait()
        expected = values_of(data_of(0, (4,), torch.complex64))
        assert_equal(tensor.resolve_conj().resolve_neg(), expected, values_of)
        own = [data_of(each, (4,), torch.complex64) for each in range(size)]
        tensor = view_of(own[0]) if rank == 0 else own[rank].clone()
        # `dist.all_reduce` itself refuses conjugated views.
        dist.group.WORLD.allreduce([tensor]).wait()
        expected = sum(own[1:], values_of(own[0] if rank else data_of(0, (4,), torch.complex64)))
        assert_equal(tensor.resolve_conj().resolve_neg(), expected, values_of)
    tensor = torch._neg_view(data_of(rank)) if rank == 0 else -data_of(rank)
    dist.all_reduce(tensor)
    assert_equal(tensor.resolve_neg(), -total("SUM", (7,), torch.float32))


def check_gather_and_scatter() -> None:
    contributions = [data_of(each, (3, 2)) for each in range(size)]
    for root in range(size):
        outputs = [torch.empty(3, 2) for _ in range(size)] if rank == root else None
        dist.gather(data_of(rank, (3, 2)), outputs, root)
        for output, contribution in zip(outputs or [], contributions):
            assert_equal(output, contribution)
        output = torch.empty(3, 2)
        dist.scatter(output, contributions if rank == root else None, root)
        assert_equal(output, contributions[rank])
        output = strided(torch.empty(3, 2))
        dist.scatter(output, [strided(each) for each in contributions] if rank == root else None, root)
        assert torch.equal(output, contributions[rank])
    if hasattr(dist, "gather_single"):
        output = torch.empty(size, 3, 2) if rank == 1 else None
        dist.gather_single(data_of(rank, (3, 2)), output, 1)
        if rank == 1:
            assert_equal(output, torch.stack(contributions))


def check_long_gather_and_scatter() -> None:
    """On devices these have many pieces. The root needs more host memory for a piece than the others."""
    contributions = [data_of(each, (60_000,)) for each in range(size)]
    for root in range(size):
        for is_async in (False, True):
            outputs = [torch.empty(60_000) for _ in range(size)] if rank == root else None
            output = torch.empty(60_000)
            works = [
                dist.gather(contributions[rank], outputs, root, async_op=is_async),
                dist.scatter(output, contributions if rank == root else None, root, async_op=is_async),
            ]
            for work in works if is_async else ():
                work.wait()
            for each, contribution in zip(outputs or [], contributions):
                assert_equal(each, contribution)
            assert_equal(output, contributions[rank])


def check_all_to_all() -> None:
    table = lambda of_rank: data_of(of_rank, (size, 3))  # noqa: E731
    expected = torch.stack([table(each)[rank] for each in range(size)])
    output = torch.empty(size, 3)
    dist.all_to_all_single(output, table(rank))
    assert_equal(output, expected)
    outputs = [torch.empty(3) for _ in range(size)]
    dist.all_to_all(outputs, [row.clone() for row in table(rank)])
    assert_equal(torch.stack(outputs), expected)
    same_tensor = table(rank)
    dist.all_to_all_single(same_tensor, same_tensor)
    assert_equal(same_tensor, expected, "from and to the same memory")


def check_all_to_all_of_unequal_lengths() -> None:
    # Rank r sends r + s rows to rank s.
    rows = [rank + each for each in range(size)]
    row_counts = lambda of_rank: [of_rank + other for other in range(size)]  # noqa: E731
    rows_of = lambda of_rank: data_of(of_rank, (sum(row_counts(of_rank)), 2), torch.float64)  # noqa: E731
    expected = torch.cat([rows_of(each).split(row_counts(each))[rank] for each in range(size)])
    output = torch.empty(sum(rows), 2, dtype=torch.float64)
    dist.all_to_all_single(output, rows_of(rank), rows, rows)
    assert_equal(output, expected)
    outputs = [torch.empty(count, 2, dtype=torch.float64) for count in rows]
    dist.all_to_all(outputs, list(rows_of(rank).split(rows)))
    assert_equal(torch.cat(outputs), expected)


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
