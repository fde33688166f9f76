"""PyTorch tensors as arrays: results are tensors, memory is shared, unsupported tensors are refused."""

from __future__ import annotations

import torch

import tbccl

with tbccl.init(timeout=60) as comm:
    size, rank = comm.size, comm.rank
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8):
        mine = torch.full((3, 4), rank + 1, dtype=dtype)
        total = comm.all_reduce(mine)
        expected = torch.full((3, 4), sum(range(1, size + 1)), dtype=dtype)
        assert isinstance(total, torch.Tensor) and total.dtype == dtype, total
        assert torch.equal(total, expected), total
        assert (mine == rank + 1).all()
        assert comm.all_reduce(mine, out=mine) is mine and torch.equal(mine, expected)
        gathered = comm.all_gather(torch.full((2,), rank, dtype=dtype))
        assert gathered.shape == (size, 2) and gathered[:, 0].tolist() == list(range(size))
    work = comm.all_reduce_async(torch.ones(1000))
    assert work.result(30)[0] == size
    registered = torch.from_dlpack(comm.empty(5, "bf16"))
    assert registered.dtype == torch.bfloat16 and registered.shape == (5,)
    registered += rank + 1
    assert comm.all_reduce(registered, "max").tolist() == [size] * 5
    for tensor, message in [
        (torch.ones(3, 4).T, "are not contiguous"),
        (torch.ones(3, requires_grad=True), "gradient"),
        (torch.ones(3, device="meta"), ""),
        (torch.ones(3, dtype=torch.complex128), "tbccl does not support"),
    ]:
        try:
            comm.all_reduce(tensor)
        except tbccl.InvalidArgumentError as error:
            assert message in str(error), error
        else:
            raise AssertionError(f"not refused: {message}")
    comm.barrier()
