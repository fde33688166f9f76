import torch
import torch.distributed as dist

import tbccl.torch

step("making the process group")
dist.init_process_group("tbccl")
rank, size = dist.get_rank(), dist.get_world_size()
total = sum(range(1, size + 1))

step("calling all_reduce, all_gather, broadcast and others on all types")
tests = Tests("groups")
types = [
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
]
for dtype in types:
    for count in (1, 1000, 70_000):
        mine = torch.full((count,), rank + 1).to(dtype)

        def same(what, found, value):
            expected = torch.full_like(found, value)
            tests.same(f"{what} of {count} {dtype}", torch.equal(found, expected))

        for name, op, value in (
            ("sum", dist.ReduceOp.SUM, total),
            ("max", dist.ReduceOp.MAX, size),
            ("min", dist.ReduceOp.MIN, 1),
        ):
            data = mine.clone()
            dist.all_reduce(data, op)
            same(f"all_reduce {name}", data, value)
        gathered = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(gathered, mine)
        for one, found in enumerate(gathered):
            same(f"all_gather from {one}", found, one + 1)
        data = mine.clone()
        dist.broadcast(data, size - 1)
        same("broadcast", data, size)
        whole = torch.cat([torch.full((count,), rank + 1).to(dtype)] * size)
        scattered = torch.empty_like(mine)
        dist.reduce_scatter_tensor(scattered, whole)
        same("reduce_scatter", scattered, total)
        exchanged = torch.empty_like(whole)
        dist.all_to_all_single(exchanged, whole)
        for one, found in enumerate(exchanged.chunk(size)):
            same(f"all_to_all from {one}", found, one + 1)

step("sending around the ring")
if size > 1:
    sent, got = torch.full((5000,), float(rank)), torch.empty(5000)
    requests = [dist.isend(sent, (rank + 1) % size), dist.irecv(got, (rank - 1) % size)]
    for request in requests:
        request.wait()
    tests.same("a message around the ring", torch.equal(got, torch.full((5000,), float((rank - 1) % size))))
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank})
tests.same("all_gather_object", [one["rank"] for one in objects] == list(range(size)))
dist.barrier()
tests.report(f": PyTorch {torch.__version__}, {size} ranks")

step("looking for mps")
mps = getattr(torch.backends, "mps", None)
if mps is None or not mps.is_available():
    check("unknown", "mps", "this PyTorch has no mps", "nothing: tensors must be in CPU memory")
else:
    text = "tensors on mps are not supported yet: tbccl works on CPU memory"
    check("unknown", "mps", text, "move tensors with .cpu() before a call")
dist.destroy_process_group()
