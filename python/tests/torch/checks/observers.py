"""Observers of calls: the profiler, dispatch modes, hooks, torch's flight recorder and error handlers."""

from __future__ import annotations

import json
import os

import torch
import torch.distributed as dist
from torch._subclasses import FakeTensorMode
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from checks.common import raises, rank, size


def check_the_profiler_sees_calls_with_their_shapes() -> None:
    gathered = torch.empty(size, 3)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        dist.all_reduce(torch.ones(3, 5))
        dist.all_gather_into_tensor(gathered, torch.full((3,), float(rank)))
        # A call of the program's own threads is its own work, with all methods.
        work = dist.all_reduce(torch.ones(2), async_op=True)
        work.wait()
        assert work.is_completed() and work.is_success()
    assert gathered[:, 0].tolist() == list(range(size))
    shapes = {event.name: event.input_shapes for event in profiled.events()[::-1]}
    assert shapes["tbccl:allreduce"] == [[3, 5]], shapes
    assert shapes["tbccl:all_gather_single"] == [[size, 3], [3]], shapes
    assert "c10d::allreduce_" in shapes, shapes


def check_dispatch_modes_see_calls() -> None:
    tensor = torch.ones(2)
    with CommDebugMode() as counted:
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
    counts = {str(operation): count for operation, count in counted.get_comm_counts().items()}
    assert counts == {"c10d.allreduce_": 1, "c10d.broadcast_": 1}, counts
    assert tensor.tolist() == [size, size]


def check_fake_tensors_need_no_other_rank() -> None:
    if rank == 0:
        with FakeTensorMode():
            part, whole = torch.ones(2), torch.empty(2 * size)
            dist.all_reduce(part)
            dist.all_gather_into_tensor(whole, part)
            dist.reduce_scatter_tensor(part, whole)
            assert part.shape == (2,) and whole.shape == (2 * size,)
    dist.barrier()


def check_hooks_run_around_calls() -> None:
    group, seen = dist.group.WORLD, []
    group.register_pre_hook(1, lambda call: seen.append(("before", call.name.name, call.op_id)))
    group.register_post_hook(2, lambda call: seen.append(("after", call.name.name, call.op_id)))
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    dist.barrier()
    assert [entry[:2] for entry in seen] == [
        ("before", "ALLREDUCE"),
        ("after", "ALLREDUCE"),
        ("before", "BARRIER"),
        ("after", "BARRIER"),
    ], seen
    assert seen[0][2] == seen[1][2] != seen[2][2], seen
    group.unregister_pre_hook(1)
    group.unregister_post_hook(2)
    dist.all_reduce(tensor)
    assert len(seen) == 4 and tensor.tolist() == 2 * [size * size], (seen, tensor)


def check_abort_hooks_run_before_an_abort_and_after_a_failure() -> None:
    aborted, failed, seen = dist.new_group(), dist.new_group(), []
    dist.all_reduce(torch.ones(1), group=aborted)
    dist.all_reduce(torch.ones(1), group=failed)
    aborted.register_abort_hook(1, lambda: seen.append(("aborted", rank)))
    failed.register_abort_hook(1, lambda: seen.append(("failed", rank)))
    failed.register_abort_hook(2, lambda: seen.append(("unregistered", rank)))
    failed.unregister_abort_hook(2)
    assert failed.supports_abort_hooks and failed.get_error().name == "SUCCESS"
    # An abort would end the calls above on ranks that are still in them.
    dist.barrier()
    aborted.abort()
    # A mismatch of lengths ends the group on all ranks.
    raises(RuntimeError, "", lambda: dist.all_reduce(torch.ones(1 + rank), group=failed))
    assert failed.get_error().name in ("COMM_ERROR", "REMOTE_ERROR"), failed.get_error()
    assert seen == [("aborted", rank), ("failed", rank)], seen
    dist.destroy_process_group(failed)
    dist.destroy_process_group(aborted)
    dist.barrier()


def check_the_flight_recorder_writes_what_torchs_tools_read() -> None:
    """The environment asks for the recorder while the group is made."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
    group = dist.new_group()
    del os.environ["TORCH_FR_BUFFER_SIZE"]
    dist.all_reduce(torch.ones(3, 5), group=group)
    dist.barrier(group=group)
    trace = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(backend="tbccl"))
    entries = [entry for entry in trace["entries"] if entry["process_group"][0] == group.group_name]
    names = [entry["profiling_name"] for entry in entries]
    assert names == ["tbccl:all_reduce", "tbccl:barrier"], entries
    assert entries[0]["input_sizes"] == [[3, 5]] and all(entry["retired"] for entry in entries), entries
    dist.destroy_process_group(group)


def check_the_compressing_hook_built_into_ddp() -> None:
    torch.manual_seed(0)
    built_in, reference = (
        DistributedDataParallel(torch.nn.Linear(8, 8).requires_grad_()) for _ in range(2)
    )
    reference.module.load_state_dict(built_in.module.state_dict())
    built_in._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    reference.register_comm_hook(None, default_hooks.fp16_compress_hook)
    inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))
    for model in (built_in, reference):
        model(inputs).square().sum().backward()
    for ours, theirs in zip(built_in.parameters(), reference.parameters()):
        assert torch.allclose(ours.grad, theirs.grad, rtol=2e-3, atol=1e-3), (ours.grad, theirs.grad)


def check_compiled_programs_have_no_graph_break() -> None:
    def step(tensor: torch.Tensor) -> torch.Tensor:
        total, whole = tensor * 2, torch.empty(size * tensor.numel())
        dist.all_reduce(total)
        dist.all_gather_into_tensor(whole, total)
        part = torch.empty_like(tensor)
        dist.reduce_scatter_tensor(part, whole)
        return part + 1

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert compiled(torch.ones(3)).tolist() == 3 * [2 * size * size + 1]


def check_coalesced_functional_collectives() -> None:
    inputs = [torch.ones(2), torch.full((3,), float(rank))]
    name = dist.group.WORLD.group_name
    outputs = torch.ops._c10d_functional.all_reduce_coalesced(inputs, "sum", name)
    outputs = [torch.ops._c10d_functional.wait_tensor(output) for output in outputs]
    assert outputs[0].tolist() == 2 * [size] and outputs[1].tolist() == 3 * [sum(range(size))]
