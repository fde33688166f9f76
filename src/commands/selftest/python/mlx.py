import mlx.core as mx

import tbccl.mlx

step("making the group of MLX")
world = tbccl.mlx.init()
rank, size = world.rank(), world.size()
total = sum(range(1, size + 1))

step("calling all_sum, all_max, all_min and all_gather on all types")
tests = Tests("groups")
types = [
    mx.bool_, mx.int8, mx.int16, mx.int32, mx.int64, mx.uint8, mx.uint16, mx.uint32, mx.uint64,
    mx.float16, mx.bfloat16, mx.float32, mx.complex64,
]
CPU = mx.cpu
for dtype in types:
    for count in (1, 1000, 70_000):
        mine = mx.full((count,), rank + 1, dtype=dtype, stream=CPU)
        every = [mx.full((count,), one + 1, dtype=dtype, stream=CPU) for one in range(size)]
        if dtype != mx.bool_:
            summed = mx.distributed.all_sum(mine, group=world, stream=CPU)
            expected = mx.full((count,), total, dtype=dtype, stream=CPU)
            tests.same(f"all_sum of {count} {dtype}", mx.array_equal(summed, expected, stream=CPU).item())
        gathered = mx.distributed.all_gather(mine, group=world, stream=CPU)
        expected = mx.concatenate(every, stream=CPU)
        tests.same(f"all_gather of {count} {dtype}", mx.array_equal(gathered, expected, stream=CPU).item())
        if dtype in (mx.bool_, mx.complex64):
            continue
        for name, value in (("all_max", size), ("all_min", 1)):
            if hasattr(mx.distributed, name):
                found = getattr(mx.distributed, name)(mine, group=world, stream=CPU)
                expected = mx.full((count,), value, dtype=dtype, stream=CPU)
                tests.same(f"{name} of {count} {dtype}", mx.array_equal(found, expected, stream=CPU).item())

step("sending around the ring")
sent = mx.arange(5000, dtype=mx.float32, stream=CPU) + rank
if size > 1:
    if rank % 2 == 0:
        mx.eval(mx.distributed.send(sent, (rank + 1) % size, group=world, stream=CPU))
        if rank > 0 or size % 2 == 0:
            got = mx.distributed.recv_like(sent, (rank - 1) % size, group=world, stream=CPU)
            mx.eval(got)
    else:
        got = mx.distributed.recv_like(sent, (rank - 1) % size, group=world, stream=CPU)
        mx.eval(got)
        mx.eval(mx.distributed.send(sent, (rank + 1) % size, group=world, stream=CPU))
    if size % 2 == 1 and rank == 0:
        got = mx.distributed.recv_like(sent, size - 1, group=world, stream=CPU)
        mx.eval(got)
    expected = mx.arange(5000, dtype=mx.float32, stream=CPU) + (rank - 1) % size
    tests.same("a message around the ring", mx.array_equal(got, expected, stream=CPU).item())

step("splitting the group")
half = world.split(rank % 2)
members = [one for one in range(size) if one % 2 == rank % 2]
if half.size() > 1:
    summed = mx.distributed.all_sum(mx.array([float(rank)]), group=half, stream=CPU)
    tests.same("all_sum of a split group", summed.item() == sum(members))
tests.same("the size of a split group", half.size() == len(members))
tests.report(f": MLX {mx.__version__}, {size} ranks")

step("computing arrays on the GPU")
try:
    has_metal = mx.metal.is_available()
except Exception:
    has_metal = False
if not has_metal:
    check("unknown", "metal", "this MLX has no Metal", "run the test on a Mac with MLX for Apple silicon")
else:
    metal = Tests("metal")
    for count in (1, 1000, 70_000, 3_000_000):
        computed = mx.sqrt(mx.full((count,), float((rank + 1) ** 2), stream=mx.gpu), stream=mx.gpu) * 2
        summed = mx.distributed.all_sum(computed, group=world, stream=CPU)
        after = mx.add(summed, 1.0, stream=mx.gpu)
        metal.same(f"all_sum of {count} floats computed by Metal", mx.all(after == 2 * total + 1).item())
    metal.report()

step("calling the collectives that MLX lacks")
if not hasattr(tbccl.mlx, "all_to_all"):
    text = "the tbccl of this Python has no collectives of its own for MLX"
    check("unknown", "own-collectives", text, "install the version that this test belongs to")
else:
    own = Tests("own-collectives")

    def is_equal(found, expected):
        return mx.array_equal(found, mx.concatenate(expected, stream=CPU), stream=CPU).item()

    def block(number, of):
        """Returns block `number` of the input of rank `of`."""
        return mx.arange(1000 * number, 1000 * (number + 1), dtype=mx.int32, stream=CPU) * (of + 1)

    mine = mx.concatenate([block(one, rank) for one in range(size)], stream=CPU)
    found = tbccl.mlx.all_to_all(mine, group=world, stream=CPU)
    own.same("all_to_all", is_equal(found, [block(rank, one) for one in range(size)]))
    found = tbccl.mlx.sum_scatter(mine, group=world, stream=CPU)
    own.same("sum_scatter", is_equal(found, [block(rank, 0) * total]))
    found = tbccl.mlx.broadcast(mine, size - 1, group=world, stream=CPU)
    own.same("broadcast", is_equal(found, [block(one, size - 1) for one in range(size)]))
    tbccl.mlx.barrier(group=world)
    own.report()
mx.eval(mx.distributed.all_sum(mx.ones(1), group=world, stream=CPU))
