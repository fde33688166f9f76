"""Every collective, on every element type, against numpy: out of place, in place, into `out`, later, and in groups."""

from __future__ import annotations

import numpy as np

import tbccl

FLOATS = ["float16", "float32", "float64"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
TYPES = [*FLOATS, *INTEGERS, "complex64", "bool"]
COMBINE = {
    "sum": lambda parts: np.sum(parts, axis=0, dtype=parts.dtype),
    "prod": lambda parts: np.prod(parts, axis=0, dtype=parts.dtype),
    "max": lambda parts: np.max(parts, axis=0),
    "min": lambda parts: np.min(parts, axis=0),
    "avg": lambda parts: np.sum(parts, axis=0, dtype=parts.dtype) / np.array(len(parts), parts.dtype),
    "band": lambda parts: np.bitwise_and.reduce(parts, axis=0),
    "bor": lambda parts: np.bitwise_or.reduce(parts, axis=0),
    "bxor": lambda parts: np.bitwise_xor.reduce(parts, axis=0),
}


def ops_of(dtype: str) -> list[str]:
    if dtype in FLOATS:
        return ["sum", "prod", "max", "min", "avg"]
    if dtype == "complex64":
        return ["sum", "prod", "avg"]
    if dtype == "bool":
        return ["sum", "max", "min", "band", "bor", "bxor"]
    return ["sum", "prod", "max", "min", "band", "bor", "bxor"]


def part(rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """A rank's contribution: small whole numbers, which sum without rounding in every order."""
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    if dtype == "bool":
        return (numbers + rank) % 3 == 0
    values = (numbers * 7 + rank * 3) % 5 + 1
    return values.astype(dtype) if dtype != "complex64" else (values + 1j * (rank + 1)).astype(dtype)


def same(found: np.ndarray, wanted: np.ndarray, what: str) -> None:
    found = np.asarray(found)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape, f"{what}: {found.dtype} {found.shape}"
    close = np.allclose(found, wanted, rtol=1e-3 if wanted.dtype == np.float16 else 1e-6)
    assert close if wanted.dtype.kind in "fc" else np.array_equal(found, wanted), f"{what}: {found} instead of {wanted}"


def reductions(comm: tbccl.Communicator, shape: tuple[int, ...], dtype: str) -> None:
    mine = part(comm.rank, shape, dtype)
    parts = np.stack([part(rank, shape, dtype) for rank in range(comm.size)])
    for op in ops_of(dtype):
        if dtype == "bool" and op == "sum":
            continue  # It is `or` for numpy, too, but numpy says it in other words.
        wanted = COMBINE[op](parts).astype(dtype)
        what = f"{op} of {dtype} {shape}"
        kept = mine.copy()
        same(comm.all_reduce(mine, op), wanted, f"all_reduce {what}")
        same(mine, kept, "what was given stays")
        out = np.empty_like(mine)
        assert comm.all_reduce(mine, op, out=out) is out
        same(out, wanted, f"all_reduce into out {what}")
        in_place = mine.copy()
        assert comm.all_reduce(in_place, op, out=in_place) is in_place
        same(in_place, wanted, f"all_reduce in place {what}")
        same(comm.all_reduce_async(mine, op).result(), wanted, f"all_reduce_async {what}")
        root = comm.size - 1
        reduced = comm.reduce(mine, op, root)
        if comm.rank == root:
            same(reduced, wanted, f"reduce {what}")
        else:
            assert reduced is None
        if op != "avg":
            same(comm.scan(mine, op), COMBINE[op](parts[: comm.rank + 1]).astype(dtype), f"scan {what}")
            before = comm.exclusive_scan(mine, op)
            if comm.rank > 0:
                same(before, COMBINE[op](parts[: comm.rank]).astype(dtype), f"exclusive_scan {what}")
        whole = np.concatenate([mine] * comm.size)
        rows = shape[0]
        same(comm.reduce_scatter(whole, op), wanted, f"reduce_scatter {what}")
        lengths = [rows * comm.size - (comm.size - 1), *[1] * (comm.size - 1)]
        at = sum(lengths[: comm.rank])
        all_wanted = np.concatenate([wanted] * comm.size)
        found = comm.reduce_scatter_v(whole, lengths, op)
        same(found, all_wanted[at : at + lengths[comm.rank]], f"reduce_scatter_v {what}")


def moves(comm: tbccl.Communicator, shape: tuple[int, ...], dtype: str) -> None:
    size, rank = comm.size, comm.rank
    mine = part(rank, shape, dtype)
    parts = np.stack([part(other, shape, dtype) for other in range(size)])
    same(comm.all_gather(mine), parts, "all_gather")
    for root in range(size):
        data = mine.copy()
        assert comm.broadcast(data, root) is data
        same(data, parts[root], "broadcast")
        gathered = comm.gather(mine, root)
        assert (gathered is None) == (rank != root)
        if rank == root:
            same(gathered, parts, "gather")
        out = None if rank == root else np.empty_like(mine)
        given = parts if rank == root else None
        same(comm.scatter(given, root, out=out), mine, "scatter")
    blocks = np.concatenate([mine] * size)
    wanted = np.concatenate(parts)
    same(comm.all_to_all(blocks), wanted, "all_to_all")
    rows = [row + 1 for row in range(size)]
    own = np.concatenate([mine] * 2)[: rows[rank]] if shape[0] * 2 >= size else None
    if own is not None:
        all_parts = [np.concatenate([parts[other]] * 2)[: rows[other]] for other in range(size)]
        same(comm.all_gather_v(own, rows), np.concatenate(all_parts), "all_gather_v")
        gathered = comm.gather_v(own, rows, root=0)
        if rank == 0:
            same(gathered, np.concatenate(all_parts), "gather_v")
            same(comm.scatter_v(np.concatenate(all_parts), rows), own, "scatter_v")
        else:
            out = np.empty_like(own)
            same(comm.scatter_v(None, rows, out=out), own, "scatter_v")
        # Rank r sends r + 1 rows to everyone.
        mine_to_all = np.concatenate([own] * size)
        found = comm.all_to_all_v(mine_to_all, [rows[rank]] * size, rows)
        same(found, np.concatenate(all_parts), "all_to_all_v")


def groups(comm: tbccl.Communicator) -> None:
    size, rank = comm.size, comm.rank
    left, right = (rank - 1) % size, (rank + 1) % size
    with comm.group() as group:
        total = group.all_reduce(np.full(10, rank, np.int32))
        group.send(np.full(3, rank, np.float32), right)
        heard = group.recv(np.empty(3, np.float32), left)
    assert (total == sum(range(size))).all() and (heard == left).all()
    group = comm.group()
    ones = [group.all_reduce(np.full(4, 1.0)) for _ in range(5)]
    work = group.start()
    assert work.wait() and work.done()
    assert all((one == size).all() for one in ones)
    try:
        group.run()
    except tbccl.UsageError as error:
        assert "begin another group" in str(error)
    else:
        raise AssertionError("a group that was made is made again")
    with comm.group():
        pass  # Of nothing.
    assert comm.group().start().result() is None


def others(comm: tbccl.Communicator) -> None:
    size, rank = comm.size, comm.rank
    packed = comm.all_reduce_quantized(np.linspace(0, rank, 1000, dtype=np.float32))
    wanted = sum(np.linspace(0, one, 1000, dtype=np.float32) for one in range(size))
    assert np.abs(packed - wanted).max() <= 0.02 * max(wanted.max(), 1), np.abs(packed - wanted).max()
    for codec in ("int8/64", "int8/256", "bf16"):
        packed = comm.all_reduce_quantized(np.linspace(0, rank, 1000, dtype=np.float32), codec)
        assert np.abs(packed - wanted).max() <= 0.02 * max(wanted.max(), 1), codec
    comm.barrier()
    assert comm.barrier_async().wait(30)
    same(comm.with_options(algorithm="mesh", numerics="reproducible", timeout=30).all_reduce(np.full(3, 1.5)),
         np.full(3, 1.5 * size), "with options")
    registered = comm.empty((2, 3), "float32")
    view = registered.numpy()
    assert (view == 0).all() and view.shape == (2, 3)
    view[:] = rank
    result = comm.all_reduce(registered)
    assert isinstance(result, tbccl.Array)
    same(result.numpy(), np.full((2, 3), sum(range(size)), np.float32), "registered")
    same(np.from_dlpack(registered), view, "DLPack")
    del registered, result
    same(view, np.full((2, 3), rank, np.float32), "a view keeps the memory")
    # 1 and 1.5 as bfloat16: the upper halves of those of float32. Buffers know no such type; sums do.
    bits = comm.empty(2, "bf16")
    bits.numpy().view(np.uint16)[:] = [0x3F80, 0x3FC0]
    total = np.asarray(memoryview(comm.all_reduce(bits))).view(np.uint16)
    found = (total.astype(np.uint32) << 16).view(np.float32)
    same(found, np.array([size, 1.5 * size], np.float32), "bfloat16")
    # What is no array of a library.
    plain = bytearray([rank] * 4)
    assert bytes(comm.all_reduce(plain)) == bytes([sum(range(size))] * 4)
    # No elements, and a single number.
    assert comm.all_reduce(np.empty(0, np.float32)).shape == (0,)
    assert comm.all_reduce(np.array(2.0)) == 2.0 * size
    assert comm.all_gather(np.array(rank)).tolist() == list(range(size))
    stats = comm.stats()
    assert stats["begun"] == stats["finished"] > 0 and set(stats["peers"]) <= set(range(size))
    assert comm.async_error() is None
    assert f'"rank":{rank}' in comm.dump().replace(" ", "")


def parts_of_it(comm: tbccl.Communicator) -> None:
    half = comm.split(comm.rank % 2, key=-comm.rank)
    same(half.all_gather(np.array([comm.rank])).ravel(), np.arange(comm.size)[comm.rank % 2 :: 2][::-1], "split")
    half.close()
    assert (comm.split(None if comm.rank == 0 else 1) is None) == (comm.rank == 0)


def main() -> None:
    with tbccl.init(timeout=60) as comm:
        assert tbccl.default() is comm
        for dtype in TYPES:
            reductions(comm, (3, 2), dtype)
            moves(comm, (3, 2), dtype)
        reductions(comm, (40_000,), "float32")
        moves(comm, (40_000,), "float64")
        groups(comm)
        others(comm)
        parts_of_it(comm)
    try:
        comm.barrier()
    except tbccl.InvalidArgumentError as error:
        assert "finalized" in str(error)
    else:
        raise AssertionError("a call after the end")
    comm.close()


main()
