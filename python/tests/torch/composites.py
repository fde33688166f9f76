"""Groups with a backend for each device: tbccl beside others, in each order.

    tbccl run -n 2 -- python python/tests/torch/composites.py [--device DEVICE] [CHECK...]

Each check initializes and destroys the default group.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # registers the backend `fake`
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh

import accelerators

#: Checks to run, and the type of the device, which has its name before tbccl registers its devices.
SELECTED = sys.argv[1:]
DEVICE = accelerators.load(accelerators.take_option(SELECTED, "standin"))

import tbccl.torch
from checks import runner
from checks.common import raises, rank, size
from tbccl.torch import devices


@contextmanager
def default_group(backend: str | None, **settings: object) -> Iterator[dist.ProcessGroup]:
    """Makes the default group, and destroys it."""
    dist.init_process_group(backend, **settings)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def assert_reductions_on(device: str, group: dist.ProcessGroup | None = None) -> None:
    """Checks calls on tensors of a device: blocking, asynchronous, with lists and coalesced."""
    tensor = torch.full((5,), float(rank), device=device)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == 5 * [sum(range(size))], (device, tensor)
    work = dist.all_reduce(tensor.fill_(1), group=group, async_op=True)
    work.wait()
    assert tensor.tolist() == 5 * [size], (device, tensor)
    outputs = [torch.empty(2, device=device) for _ in range(size)]
    dist.all_gather(outputs, torch.full((2,), float(rank), device=device), group=group)
    assert [output.tolist() for output in outputs] == [[each, each] for each in range(size)]
    with dist._coalescing_manager(group=group):
        dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == 5 * [size * size]
    peer = (rank + 1) % size
    received = torch.empty(1, device=device)
    receiving = dist.irecv(received, (rank - 1) % size, group=group)
    dist.send(torch.full((1,), float(rank), device=device), peer, group=group)
    receiving.wait()
    assert received.item() == (rank - 1) % size


def check_one_name_serves_every_device() -> None:
    with default_group("tbccl") as group:
        assert type(group) is tbccl.torch.ProcessGroup
        assert_reductions_on("cpu")
        assert_reductions_on(DEVICE)


def check_other_backends_serve_their_devices() -> None:
    for backend in (f"cpu:gloo,{DEVICE}:tbccl", f"{DEVICE}:tbccl,cpu:gloo"):
        with default_group(backend) as group:
            assert isinstance(group, tbccl.torch.ProcessGroup)
            before = group._comm.stats()["begun"]
            assert_reductions_on("cpu")
            assert group._comm.stats()["begun"] == before, "gloo serves the CPU"
            assert "gloo" in type(group._get_backend(torch.device("cpu"))).__name__.lower()
            assert_reductions_on(DEVICE)
            assert group._comm.stats()["begun"] > before
            assert group._get_backend(torch.device(DEVICE)) is group
            # Torch's tables name one group, as for any backend.
            assert list(c10d._world.pg_map) == [group]
            other = dist.new_group()
            assert isinstance(other, tbccl.torch.ProcessGroup)
            assert_reductions_on("cpu", other)
            assert_reductions_on(DEVICE, other)
            dist.barrier()
            objects: list[object] = [None] * size
            dist.all_gather_object(objects, rank)
            assert objects == list(range(size))


def check_many_calls_of_gloo_end() -> None:
    """Threads of gloo need Python's lock to drop a call's tensors, and hold a lock of gloo's meanwhile."""
    with default_group(f"cpu:gloo,{DEVICE}:tbccl"):
        for _ in range(300):
            outputs = [torch.empty(2) for _ in range(size)]
            gathering = dist.all_gather(outputs, torch.ones(2), async_op=True)
            reducing = dist.all_reduce(torch.ones(3), async_op=True)
            for work in (gathering, reducing):
                work.wait()


def check_tbccl_serves_the_host_beside_another_backend() -> None:
    """The fake backend answers at once, and leaves tensors as they are."""
    for backend in (f"cpu:tbccl,{DEVICE}:fake", f"{DEVICE}:fake,cpu:tbccl"):
        with default_group(backend):
            assert_reductions_on("cpu")
            tensor = torch.full((3,), float(rank), device=DEVICE)
            dist.all_reduce(tensor)
            assert tensor.tolist() == 3 * [rank]


def check_what_cannot_be_honoured_is_refused() -> None:
    raises(ValueError, "names no type of device", lambda: dist.init_process_group("nonsense:tbccl,cpu:tbccl"))
    assert not dist.is_initialized()
    raises(ValueError, "names no backend", lambda: dist.init_process_group(f"cpu:tbccl,{DEVICE}:nonsense"))
    assert not dist.is_initialized()
    with default_group(f"{DEVICE}:tbccl"):
        assert_reductions_on(DEVICE)
        raises(ValueError, "no backend for tensors that are on cpu", lambda: dist.all_reduce(torch.ones(1)))


def check_meshes_and_bound_devices() -> None:
    devices._accesses.clear()
    with default_group("tbccl", device_id=torch.device(DEVICE, 0)):
        assert torch.device(DEVICE, 0) in devices._accesses, "made with the group"
        assert_reductions_on(DEVICE)
        mesh = init_device_mesh(DEVICE, (size,))
        assert_reductions_on(DEVICE, mesh.get_group())
        other = dist.new_group()
        assert_reductions_on(DEVICE, other)
        mesh = init_device_mesh(DEVICE, (1, size), mesh_dim_names=("copies", "shards"))
        assert_reductions_on(DEVICE, mesh["shards"].get_group())


def check_the_default_backend_of_devices_that_have_no_other() -> None:
    defaults = dist.Backend.default_device_backend_map
    assert (defaults["mps"], defaults["cpu"], defaults["cuda"]) == ("tbccl", "gloo", "nccl"), defaults
    # As `mps` on a Mac: no backend is named, so that torch takes that of the accelerator.
    defaults[DEVICE] = defaults["mps"]
    with default_group(None):
        assert_reductions_on(DEVICE)
        assert_reductions_on("cpu")
    mesh = init_device_mesh(DEVICE, (size,))
    assert_reductions_on(DEVICE, mesh.get_group())
    assert isinstance(dist.group.WORLD, tbccl.torch.ProcessGroup)
    dist.destroy_process_group()


def compare_with_nccl() -> None:
    """nccl serves `cuda` and tbccl the host, in either order. Not among the checks: nccl may be missing."""
    for backend in ("cpu:tbccl,cuda:nccl", "cuda:nccl,cpu:tbccl"):
        with default_group(backend) as group:
            assert isinstance(group, tbccl.torch.ProcessGroup)
            for members in (None, dist.new_group()):
                on_host, on_device = torch.full((5,), 3.0), torch.full((5,), 3.0, device="cuda")
                dist.all_reduce(on_host, group=members)
                before = group._comm.stats()["begun"]
                dist.all_reduce(on_device, group=members)
                assert group._comm.stats()["begun"] == before, "nccl serves the device"
                assert on_host.tolist() == on_device.tolist() == 5 * [3.0 * size]


def main() -> None:
    torch.set_num_threads(1)
    passed = runner.run(globals(), SELECTED)
    print(f"@passed {rank} {passed} checks of composites passed", flush=True)


if __name__ == "__main__":
    main()
