"""Every collective, on every element type, against numpy.

Covers calls out of place, in place, into `out`, asynchronous, and in groups.
"""

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
    """Returns a rank's contribution: small whole numbers, whose sum is exact in every order."""
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    if dtype == "bool":
        return (numbers + rank) % 3 == 0
    values = (numbers * 7 + rank * 3) % 5 + 1
    return values.astype(dtype) if dtype != "complex64" else (values + 1j * (rank + 1)).astype(dtype)


def assert_equal(result: np.ndarray, expected: np.ndarray, description: str) -> None:
    result = np.asarray(result)
    is_alike = result.dtype == expected.dtype and result.shape == expected.shape
    assert is_alike, f"{description}: {result.dtype} {result.shape}"
    is_close = np.allclose(result, expected, rtol=1e-3 if expected.dtype == np.float16 else 1e-6)
    is_equal = is_close if expected.dtype.kind in "fc" else np.array_equal(result, expected)
    assert is_equal, f"{description}: {result} instead of {expected}"


def reductions(comm: tbccl.Communicator, shape: tuple[int, ...], dtype: str) -> None:
    mine = part(comm.rank, shape, dtype)
    parts = np.stack([part(rank, shape, dtype) for rank in range(comm.size)])
    for op in ops_of(dtype):
        if dtype == "bool" and op == "sum":
            continue  # The sum of booleans is `or`, which `bor` covers.
        expected = COMBINE[op](parts).astype(dtype)
        description = f"{op} of {dtype} {shape}"
        original = mine.copy()
        assert_equal(comm.all_reduce(mine, op), expected, f"all_reduce {description}")
        assert_equal(mine, original, "the input is unchanged")
        out = np.empty_like(mine)
        assert comm.all_reduce(mine, op, out=out) is out
        assert_equal(out, expected, f"all_reduce into out {description}")
        in_place = mine.copy()
        assert comm.all_reduce(in_place, op, out=in_place) is in_place
        assert_equal(in_place, expected, f"all_reduce in place {description}")
        assert_equal(comm.all_reduce_async(mine, op).result(), expected, f"all_reduce_async {description}")
        root = comm.size - 1
        reduced = comm.reduce(mine, op, root)
        if comm.rank == root:
            assert_equal(reduced, expected, f"reduce {description}")
        else:
            assert reduced is None
        if op != "avg":
            inclusive = COMBINE[op](parts[: comm.rank + 1]).astype(dtype)
            assert_equal(comm.scan(mine, op), inclusive, f"scan {description}")
            before = comm.exclusive_scan(mine, op)
            if comm.rank > 0:
                exclusive = COMBINE[op](parts[: comm.rank]).astype(dtype)
                assert_equal(before, exclusive, f"exclusive_scan {description}")
        all_blocks = np.concatenate([mine] * comm.size)
        rows = shape[0]
        assert_equal(comm.reduce_scatter(all_blocks, op), expected, f"reduce_scatter {description}")
        lengths = [rows * comm.size - (comm.size - 1), *[1] * (comm.size - 1)]
        offset = sum(lengths[: comm.rank])
        all_expected = np.concatenate([expected] * comm.size)
        result = comm.reduce_scatter_v(all_blocks, lengths, op)
        own = all_expected[offset : offset + lengths[comm.rank]]
        assert_equal(result, own, f"reduce_scatter_v {description}")


def data_movement(comm: tbccl.Communicator, shape: tuple[int, ...], dtype: str) -> None:
    size, rank = comm.size, comm.rank
    mine = part(rank, shape, dtype)
    parts = np.stack([part(other, shape, dtype) for other in range(size)])
    assert_equal(comm.all_gather(mine), parts, "all_gather")
    for root in range(size):
        data = mine.copy()
        assert comm.broadcast(data, root) is data
        assert_equal(data, parts[root], "broadcast")
        gathered = comm.gather(mine, root)
        assert (gathered is None) == (rank != root)
        if rank == root:
            assert_equal(gathered, parts, "gather")
        out = None if rank == root else np.empty_like(mine)
        input_data = parts if rank == root else None
        assert_equal(comm.scatter(input_data, root, out=out), mine, "scatter")
    blocks = np.concatenate([mine] * size)
    expected = np.concatenate(parts)
    assert_equal(comm.all_to_all(blocks), expected, "all_to_all")
    rows = [row + 1 for row in range(size)]
    own = np.concatenate([mine] * 2)[: rows[rank]] if shape[0] * 2 >= size else None
    if own is not None:
        all_parts = [np.concatenate([parts[other]] * 2)[: rows[other]] for other in range(size)]
        assert_equal(comm.all_gather_v(own, rows), np.concatenate(all_parts), "all_gather_v")
        gathered = comm.gather_v(own, rows, root=0)
        if rank == 0:
            assert_equal(gathered, np.concatenate(all_parts), "gather_v")
            assert_equal(comm.scatter_v(np.concatenate(all_parts), rows), own, "scatter_v")
        else:
            out = np.empty_like(own)
            assert_equal(comm.scatter_v(None, rows, out=out), own, "scatter_v")
        # Rank r sends r + 1 rows to every rank.
        mine_to_all = np.concatenate([own] * size)
        result = comm.all_to_all_v(mine_to_all, [rows[rank]] * size, rows)
        assert_equal(result, np.concatenate(all_parts), "all_to_all_v")


def groups(comm: tbccl.Communicator) -> None:
    size, rank = comm.size, comm.rank
    left, right = (rank - 1) % size, (rank + 1) % size
    with comm.group() as group:
        total = group.all_reduce(np.full(10, rank, np.int32))
        group.send(np.full(3, rank, np.float32), right)
        received = group.recv(np.empty(3, np.float32), left)
    assert (total == sum(range(size))).all() and (received == left).all()
    # The last rank has nothing to do in a group in which others exchange messages.
    group = comm.group()
    if rank == 0 and comm.size > 2:
        group.send(np.ones(1), 1)
    elif rank == 1 and comm.size > 2:
        group.recv(np.empty(1), 0)
    work = group.start()
    assert work.done() or rank < 2, work
    assert work.wait(30) and work.result() is None
    group = comm.group()
    sums = [group.all_reduce(np.full(4, 1.0)) for _ in range(5)]
    work = group.start()
    assert work.wait() and work.done()
    assert all((one == size).all() for one in sums)
    try:
        group.run()
    except tbccl.UsageError as error:
        assert "begin another group" in str(error)
    else:
        raise AssertionError("a finished group ran again")
    with comm.group():
        pass  # An empty group.
    assert comm.group().start().result() is None


def other_features(comm: tbccl.Communicator) -> None:
    size, rank = comm.size, comm.rank
    compressed = comm.all_reduce_quantized(np.linspace(0, rank, 1000, dtype=np.float32))
    expected = sum(np.linspace(0, one, 1000, dtype=np.float32) for one in range(size))
    difference = np.abs(compressed - expected).max()
    assert difference <= 0.02 * max(expected.max(), 1), difference
    for codec in ("int8/64", "int8/256", "bf16"):
        compressed = comm.all_reduce_quantized(np.linspace(0, rank, 1000, dtype=np.float32), codec)
        assert np.abs(compressed - expected).max() <= 0.02 * max(expected.max(), 1), codec
    comm.barrier()
    assert comm.barrier_async().wait(30)
    with_options = comm.with_options(algorithm="mesh", numerics="reproducible", timeout=30)
    assert_equal(with_options.all_reduce(np.full(3, 1.5)), np.full(3, 1.5 * size), "with options")
    registered = comm.empty((2, 3), "float32")
    view = registered.numpy()
    assert (view == 0).all() and view.shape == (2, 3)
    view[:] = rank
    result = comm.all_reduce(registered)
    assert isinstance(result, tbccl.Array)
    assert_equal(result.numpy(), np.full((2, 3), sum(range(size)), np.float32), "registered")
    assert_equal(np.from_dlpack(registered), view, "DLPack")
    del registered, result
    assert_equal(view, np.full((2, 3), rank, np.float32), "a view keeps the memory")
    # 1 and 1.5 as bfloat16: the upper halves of their float32 bits. Buffers have no format for the type.
    bits = comm.empty(2, "bf16")
    bits.numpy().view(np.uint16)[:] = [0x3F80, 0x3FC0]
    total = np.asarray(memoryview(comm.all_reduce(bits))).view(np.uint16)
    result = (total.astype(np.uint32) << 16).view(np.float32)
    assert_equal(result, np.array([size, 1.5 * size], np.float32), "bfloat16")
    # A buffer that belongs to no array library.
    plain = bytearray([rank] * 4)
    assert bytes(comm.all_reduce(plain)) == bytes([sum(range(size))] * 4)
    # An empty array, and a scalar.
    assert comm.all_reduce(np.empty(0, np.float32)).shape == (0,)
    assert comm.all_reduce(np.array(2.0)) == 2.0 * size
    assert comm.all_gather(np.array(rank)).tolist() == list(range(size))
    stats = comm.stats()
    assert stats["begun"] == stats["finished"] > 0 and set(stats["peers"]) <= set(range(size))
    assert comm.async_error() is None
    assert f'"rank":{rank}' in comm.dump().replace(" ", "")


def splits(comm: tbccl.Communicator) -> None:
    half = comm.split(comm.rank % 2, key=-comm.rank)
    ranks = np.arange(comm.size)[comm.rank % 2 :: 2][::-1]
    assert_equal(half.all_gather(np.array([comm.rank])).ravel(), ranks, "split")
    for wrong in (-1.0, float("nan")):
        try:
            half.close(within=wrong)
        except tbccl.InvalidArgumentError as error:
            assert "within is" in str(error), error
        else:
            raise AssertionError(f"{wrong} seconds were accepted")
    half.barrier()
    half.close(within=1.0)
    assert (comm.split(None if comm.rank == 0 else 1) is None) == (comm.rank == 0)


def main() -> None:
    with tbccl.init(timeout=60) as comm:
        assert tbccl.default() is comm
        for dtype in TYPES:
            reductions(comm, (3, 2), dtype)
            data_movement(comm, (3, 2), dtype)
        reductions(comm, (40_000,), "float32")
        data_movement(comm, (40_000,), "float64")
        groups(comm)
        other_features(comm)
        splits(comm)
    try:
        comm.barrier()
    except tbccl.InvalidArgumentError as error:
        assert "finalized" in str(error)
    else:
        raise AssertionError("a closed communicator accepted a call")
    comm.close()


main()
