"""Tensors in the memory of an NVIDIA device, which ranks share where there are fewer devices than ranks."""

from __future__ import annotations

import pytest
import torch
from jobs import JobResult, job
from test_torch_devices import ORDERINGS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA device here")


def check_all_ranks_print(result: JobResult, word: str, ranks: int) -> None:
    output = result.expect_success()
    assert output.count(word) == ranks, output[-4000:]


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_operation_is_right_on_an_nvidia_device(ranks: int) -> None:
    result = job("operations.py", "--device", "cuda", ranks=ranks)
    check_all_ranks_print(result, "checks of operations passed", ranks)


def test_every_operation_is_right_on_an_nvidia_device_over_tcp() -> None:
    result = job("operations.py", "--device", "cuda", transport="tcp")
    check_all_ranks_print(result, "checks of operations passed", 2)


def test_calls_and_late_streams_keep_their_order() -> None:
    check_all_ranks_print(job("ordering.py", "--device", "cuda"), "checks of orders passed", 2)


# Tensors that are not kept do no harm here: torch keeps pinned memory until its copies are done, and the
# program's stream follows a call before the group drops the call's tensors.
@pytest.mark.parametrize("part", [part for part in ORDERINGS if part != "the_tensors"])
def test_the_check_of_an_order_fails_without_it(part: str) -> None:
    check = f"check_{ORDERINGS[part]}"
    result = job("ordering.py", "--device", "cuda", "--without", part, check)
    assert result.status != 0 and f"fails {check}" in result.output, result.output[-4000:]


@pytest.mark.parametrize("ranks", [2, 4])
def test_training_gives_the_parameters_of_one_process(ranks: int) -> None:
    result = job("training.py", "--device", "cuda", ranks=ranks)
    check_all_ranks_print(result, "ways of training passed", ranks)


def test_memory_that_cannot_be_pinned_leaves_no_error_to_the_next_kernel() -> None:
    """CUDA keeps the error of a failed call, and torch raised it after the next kernel of the program."""
    from tbccl.torch.pinning import pinning_of

    pinning = pinning_of("cuda")
    assert pinning is not None
    memory = torch.zeros(1 << 20, dtype=torch.uint8)
    address = memory.data_ptr()
    assert pinning.pin(address, memory.numel())
    assert not pinning.pin(address, memory.numel()), "memory was pinned twice"
    assert torch.ones(8, device="cuda").sum().item() == 8
    pinning.unpin(address)
    assert pinning.pin(address, memory.numel()), "it was not unpinned"
    pinning.unpin(address)


def test_groups_with_a_backend_for_each_device() -> None:
    check_all_ranks_print(job("composites.py", "--device", "cuda"), "checks of composites passed", 2)


def test_a_group_is_bound_to_its_device() -> None:
    check_all_ranks_print(job("binding.py", "--device", "cuda"), "checks of bound groups passed", 2)


def test_nccl_serves_the_device_beside_tbccl() -> None:
    """One rank: nccl refuses ranks that share a device."""
    result = job("composites.py", "--device", "cuda", "compare_with_nccl", ranks=1)
    check_all_ranks_print(result, "checks of composites passed", 1)
