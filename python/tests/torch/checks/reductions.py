"""Reductions, dense and sparse."""

from __future__ import annotations

import torch
import torch.distributed as dist

import tbccl.torch

from checks.common import COMPLEX, FLOATS, INTEGERS, assert_equal, data_of, rank, size, strided, total


def check_all_reduce_of_every_type_and_operation() -> None:
    for dtype in (*FLOATS, *INTEGERS):
        bitwise = () if dtype.is_floating_point else ("BAND", "BOR", "BXOR")
        for op in ("SUM", "PRODUCT", "MAX", "MIN", *bitwise, *(("AVG",) if dtype.is_floating_point else ())):
            if op == "PRODUCT" and dtype in (torch.int8, torch.uint8):
                continue  # The product of the contributions may overflow 8 bits.
            tensor = data_of(rank, (7,), dtype)
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            assert_equal(tensor, total(op, (7,), dtype), (dtype, op))


def check_all_reduce_of_truth_values() -> None:
    every = [data_of(each) > 1 for each in range(size)]
    for op, expected in (("MAX", torch.stack(every).any(0)), ("MIN", torch.stack(every).all(0))):
        tensor = every[rank].clone()
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
        assert_equal(tensor, expected, op)


def check_all_reduce_of_complex_numbers() -> None:
    for dtype in COMPLEX:
        for op in ("SUM", "AVG"):
            tensor = data_of(rank, (7,), dtype)
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            assert_equal(tensor, total(op, (7,), dtype), (dtype, op))
        # Direct calls of the group pass complex tensors without conversion by torch.
        tensor = data_of(rank, (7,), dtype)
        dist.group.WORLD.allreduce([tensor]).wait()
        assert_equal(tensor, total("SUM", (7,), dtype), dtype)


def check_all_reduce_of_many_lengths() -> None:
    for count in (0, 1, 2, 3, 255, 1000, 65537, 1 << 20):
        tensor = data_of(rank, (count,), torch.float32, count)
        dist.all_reduce(tensor)
        assert_equal(tensor, total("SUM", (count,), torch.float32, count), count)


def check_all_reduce_of_what_is_not_in_one_piece() -> None:
    for tensor in (strided(data_of(rank, (3, 4))), data_of(rank, (4, 3)).t(), data_of(rank, (2, 9))[:, ::2]):
        expected = sum(
            {
                (8, 2): lambda each: data_of(each, (3, 4)),
                (1, 3): lambda each: data_of(each, (4, 3)).t(),
                (9, 2): lambda each: data_of(each, (2, 9))[:, ::2],
            }[tensor.stride()](each)
            for each in range(size)
        )
        original = tensor.clone()
        for async_op in (False, True):
            tensor.copy_(original)
            work = dist.all_reduce(tensor, async_op=async_op)
            if work is not None:
                work.wait()
            assert torch.equal(tensor, expected), (tensor, expected, async_op)


def check_all_reduce_of_parameters_that_want_gradients() -> None:
    parameter = torch.nn.Parameter(data_of(rank, (4, 3)).t())
    dist.all_reduce(parameter)
    assert torch.equal(parameter.detach(), total("SUM", (4, 3), torch.float32).t())


def check_premultiplied_sums() -> None:
    for factor in (0.5, torch.tensor([0.25])):
        tensor = data_of(rank)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
        factor_value = float(factor)
        assert_equal(tensor, total("SUM", (7,), torch.float32) * factor_value, factor)
    output, tensor = torch.empty(3), data_of(rank, (3 * size,))
    dist.reduce_scatter_tensor(output, tensor, dist._make_nccl_premul_sum(0.5))
    assert_equal(output, total("SUM", (3 * size,), torch.float32)[3 * rank : 3 * rank + 3] * 0.5)
    assert_equal(tensor, data_of(rank, (3 * size,)), "the contribution stays as it is")


def check_reduce() -> None:
    for root in range(size):
        for op in ("SUM", "MAX", "AVG"):
            tensor = data_of(rank)
            dist.reduce(tensor, root, getattr(dist.ReduceOp, op))
            expected = total(op, (7,), torch.float32) if rank == root else data_of(rank)
            assert_equal(tensor, expected, (root, op))
    tensor = data_of(rank, (7,), torch.complex128)
    dist.reduce(tensor, 0)
    if rank == 0:
        assert_equal(tensor, total("SUM", (7,), torch.complex128))


def check_reduce_scatter() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        expected = total("SUM", (size, 5), dtype)[rank]
        output, inputs = torch.empty(5, dtype=dtype), data_of(rank, (size, 5), dtype)
        dist.reduce_scatter_tensor(output, inputs)
        assert_equal(output, expected)
        assert_equal(inputs, data_of(rank, (size, 5), dtype), "the input stays as it is")
        output.zero_()
        dist.reduce_scatter(output, [row.clone() for row in inputs])
        assert_equal(output, expected)
        output.zero_()
        dist.reduce_scatter(strided(output), [strided(row) for row in inputs])
        # The output is a block of the input.
        block = inputs[rank]
        dist.reduce_scatter_tensor(block, inputs)
        assert_equal(block, expected)


def check_reduce_scatter_of_blocks_of_unequal_lengths() -> None:
    blocks = [data_of(rank, (each + 1,), torch.float32, each) for each in range(size)]
    output = torch.empty(rank + 1)
    for async_op in (False, True):
        work = dist.reduce_scatter(output, blocks, async_op=async_op)
        if work is not None:
            work.wait()
        assert_equal(output, total("SUM", (rank + 1,), torch.float32, rank))


def check_sparse_all_reduce() -> None:
    shape = (size + 2, size + 2, 2)

    def mine(each: int) -> torch.Tensor:
        indices = torch.tensor([[0, each + 1, each + 1], [each, 0, 0]])
        values = torch.ones(3, 2) * (each + 1)
        return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)

    expected = sum(mine(each).to_dense() for each in range(size))
    tensor = mine(rank)
    dist.all_reduce(tensor)
    assert_equal(tensor.to_dense(), expected)
    tensor = mine(rank)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    assert_equal(work.result()[0].to_dense(), expected)
    # Only rank 0 has elements.
    empty = torch.sparse_coo_tensor(torch.empty(2, 0), torch.empty(0, 2), shape, check_invariants=True)
    tensor = mine(0) if rank == 0 else empty
    dist.all_reduce(tensor)
    assert_equal(tensor.to_dense(), mine(0).to_dense())


def check_quantized_all_reduce() -> None:
    torch.manual_seed(rank)
    tensor = torch.randn(10_000)
    exact, largest = tensor.double(), tensor.abs().max()
    dist.all_reduce(exact, dist.ReduceOp.AVG)
    dist.all_reduce(largest)
    for codec, once in (("int8", 1 / 254), ("int8/64", 1 / 254), ("int8/256", 1 / 254), ("bf16", 1 / 256)):
        packed = tensor.clone()
        tbccl.torch.quantized_all_reduce(packed, dist.ReduceOp.AVG, codec=codec)
        difference = (packed.double() - exact).abs().max().item()
        # With every plan, a contribution is compressed at most once per rank.
        bound = largest.item() * ((1 + once) ** size - 1) / size
        assert 0 < difference <= bound, (codec, difference, bound)
        first = packed.clone()
        dist.broadcast(first, 0)
        assert_equal(packed, first, "all ranks have the same bits")
