"""The order of calls on tensors of a device with the work of the device's streams, which is late.

    tbccl run -n 2 -- python python/tests/torch/ordering.py [--device cuda] [--without PART] [CHECK...]

Streams sleep before their tasks, so that work which nothing orders is done in the wrong order. With
`--without` a part of what orders calls is missing: the checks must fail then.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import accelerators
import tbccl.torch  # noqa: F401
from checks import runner
from checks.common import rank, size
from tbccl.torch import devices, pieces, staging

#: Type of the device of all tensors, and what delays its streams.
device = "standin"
delays: accelerators.Delays

#: Tasks of the program's stream before a call: more than those of the streams of the call.
TASKS_BEFORE = 30
COUNT = 4096


def late(value: float, count: int = COUNT) -> torch.Tensor:
    """Returns a tensor that gets its elements late, on the current stream."""
    tensor = torch.empty(count, device=device).fill_(-1)
    delays.occupy(TASKS_BEFORE)
    return tensor.fill_(value)


def is_all(tensor: torch.Tensor, value: float) -> bool:
    """Returns whether the elements were `value` when the current stream came to this line."""
    host = torch.empty(tensor.shape, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    torch.accelerator.current_stream().synchronize()
    return bool((host == value).all())


def blocks(values: range) -> torch.Tensor:
    """Returns late blocks, one of each value."""
    tensor = late(-1, size * COUNT)
    for value, block in zip(values, tensor.view(size, COUNT)):
        block.fill_(value)
    return tensor


def check_an_input_is_read_after_the_work_that_makes_it() -> None:
    ones, table, total = late(1), blocks(range(size)), size
    expected = sum(range(size))
    gathered, part = torch.empty(size * COUNT, device=device), torch.empty(COUNT, device=device)
    exchanged, message = torch.empty_like(gathered), torch.empty_like(part)
    root = late(7) if rank == 0 else torch.zeros(COUNT, device=device)
    own = late(rank)
    peer, other = (rank + 1) % size, (rank - 1) % size
    works = [
        dist.all_reduce(ones, async_op=True),
        dist.reduce_scatter_tensor(part, table, async_op=True),
        dist.all_to_all_single(exchanged, table, async_op=True),
        dist.broadcast(root, 0, async_op=True),
        dist.all_gather_into_tensor(gathered, own, async_op=True),
        dist.irecv(message, other),
        dist.isend(own, peer),
    ]
    for work in works:
        work.wait()
    assert is_all(ones, total), "all_reduce"
    assert is_all(part, size * rank), "reduce_scatter"
    assert is_all(exchanged, rank), "all_to_all"
    assert is_all(root, 7), "broadcast"
    assert is_all(gathered.view(size, COUNT).sum(0), expected), "all_gather"
    assert is_all(message, other), "message"


def check_a_blocking_call_reads_after_the_work_that_makes_its_input() -> None:
    short = late(3, 64)
    dist.all_reduce(short)
    assert is_all(short, 3 * size), "all_reduce"
    own = late(1)
    dist.all_reduce(own)
    assert is_all(own, size), "all_reduce of several pieces"
    root = late(7) if rank == 0 else torch.zeros(COUNT, device=device)
    dist.broadcast(root, 0)
    assert is_all(root, 7), "broadcast"


def check_a_blocking_call_on_another_stream_leaves_the_result_of_the_one_before() -> None:
    """Both use the same host memory, from which the first result is copied late."""
    first, second = (torch.full((64,), value, device=device) for value in (1.0, 10.0))
    other = torch.Stream(device=device)
    dist.all_reduce(first)
    torch.accelerator.synchronize()
    write = devices.StreamCopies.write_here

    def late_write(self: devices.StreamCopies, copies: object) -> None:
        delays.occupy(TASKS_BEFORE)
        write(self, copies)

    devices.StreamCopies.write_here = late_write
    try:
        dist.all_reduce(first)
    finally:
        devices.StreamCopies.write_here = write
    with other:
        dist.all_reduce(second)
        assert is_all(second, 10 * size), "the second call"
    assert is_all(first, size**2), "the first call"


def check_later_work_of_the_stream_sees_the_result() -> None:
    tensor = torch.ones(COUNT, device=device)
    torch.accelerator.synchronize()
    dist.all_reduce(tensor, async_op=True).wait()
    assert is_all(tensor, size), "all_reduce"
    tensor = torch.full((COUNT,), float(rank == 0), device=device)
    torch.accelerator.synchronize()
    dist.broadcast(tensor, 0, async_op=True).wait()
    assert is_all(tensor, 1), "broadcast"
    tensor = torch.ones(COUNT, device=device)
    dist.all_reduce(tensor)
    assert is_all(tensor, size), "a blocking call"
    received = torch.zeros(COUNT, device=device)
    torch.accelerator.synchronize()
    receiving = dist.irecv(received, (rank - 1) % size)
    dist.send(torch.ones(COUNT, device=device), (rank + 1) % size)
    receiving.wait()
    assert is_all(received, 1), "a message"
    future = dist.all_reduce(received, async_op=True).get_future()
    assert is_all(future.wait()[0], size), "a future"


def check_an_output_is_written_after_the_work_that_reads_it() -> None:
    """Calls that only write on this rank have no copy out that would come after the earlier work, too."""
    output, message = (torch.full((COUNT,), 5.0, device=device) for _ in range(2))
    own = torch.ones(COUNT, device=device)
    torch.accelerator.synchronize()
    # Rank 0 has no earlier work, so that the others have its data early.
    delays.occupy(TASKS_BEFORE if rank else 0)
    before = output.clone(), message.clone()
    right, left = (rank + 1) % size, (rank - 1) % size
    works = [
        dist.broadcast(output if rank else own, 0, async_op=True),
        dist.irecv(message, left),
        dist.isend(torch.ones(COUNT, device="cpu"), right),
    ]
    for work in works:
        work.wait()
    assert is_all(before[0], 5), "the copy that was issued before the broadcast"
    assert is_all(before[1], 5), "the copy that was issued before the receive"
    assert is_all(output, 1 if rank else 5) and is_all(message, 1)


def check_a_call_does_not_block_its_caller() -> None:
    tensor = late(1)
    work = dist.all_reduce(tensor, async_op=True)
    stream = torch.accelerator.current_stream()
    # The stream has not even made the input yet.
    assert not stream.query() and not work.is_completed()
    work.wait()
    assert is_all(tensor, size)


def check_memory_stays_until_the_copies_are_done() -> None:
    """Memory that the program frees is overwritten as soon as its stream is done with it."""
    outputs = []
    for number in range(10):
        input, output = late(rank + number), torch.empty(size * COUNT, device=device)
        outputs.append((output, dist.all_gather_into_tensor(output, input, async_op=True)))
        dist.all_reduce(input, async_op=True)
        del input, output
    for number, (output, work) in enumerate(outputs):
        work.wait()
        for each, block in enumerate(output.view(size, COUNT)):
            assert is_all(block, each + number), number
    message = torch.empty(COUNT, device=device)
    receiving = dist.irecv(message, (rank - 1) % size)
    dist.isend(late(rank), (rank + 1) % size)
    receiving.wait()
    del receiving
    assert is_all(message, (rank - 1) % size), "a message"


def check_host_and_device_calls_keep_their_order() -> None:
    """A call on host memory waits for the late calls before it, on each rank."""
    for number in range(5):
        on_device, on_host = late(number), torch.full((7,), 1.0)
        first = dist.all_reduce(on_device, async_op=True)
        second = dist.all_reduce(on_host, async_op=True) if number % 2 else dist.all_reduce(on_host)
        sending = dist.isend(on_device * 0 + rank, (rank + 1) % size)
        dist.isend(torch.full((3,), 50.0 + rank), (rank + 1) % size)
        on_both = torch.zeros(COUNT, device=device), torch.zeros(3)
        receiving = [dist.irecv(each, (rank - 1) % size) for each in on_both]
        for work in (first, *([second] if number % 2 else []), sending, *receiving):
            work.wait()
        assert is_all(on_device, size * number) and bool((on_host == size).all())
        assert is_all(on_both[0], (rank - 1) % size) and bool((on_both[1] == 50 + (rank - 1) % size).all())


def check_the_copies_and_the_network_of_a_blocking_call_overlap() -> None:
    expect_overlap(lambda tensor: dist.all_reduce(tensor), ("read_here", "write_here"), 12)


def check_the_copies_and_the_network_of_an_asynchronous_call_overlap() -> None:
    names = ("read", "write")
    events = expect_overlap(lambda tensor: dist.all_reduce(tensor, async_op=True).wait(), names, 2)
    # Copies out go on while the first piece is on its way, and copies in begin long before the last one.
    assert events.index("in") <= 5, events


def check_the_hook_built_into_ddp_gets_the_sum() -> None:
    """The hook copies the value of a future in C++, on a thread whose stream nothing orders."""
    # torch warns of a pass on another stream than that of the model.
    warnings.filterwarnings("ignore")
    inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(rank)).to(device)
    gradients = []
    for stream in (torch.accelerator.current_stream(), torch.Stream(device=device)):
        torch.manual_seed(0)
        built_in, reference = (
            DistributedDataParallel(torch.nn.Linear(8, 8).to(device)) for _ in range(2)
        )
        reference.module.load_state_dict(built_in.module.state_dict())
        built_in._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
        reference.register_comm_hook(None, default_hooks.fp16_compress_hook)
        torch.accelerator.synchronize()
        with stream:
            for model in (built_in, reference):
                model(inputs).square().sum().backward()
                gradients.append([parameter.grad.cpu() for parameter in model.parameters()])
        for ours, theirs in zip(*gradients[-2:]):
            assert torch.allclose(ours, theirs, rtol=2e-3, atol=1e-3), (ours, theirs)


def expect_overlap(reduce: Callable[[torch.Tensor], object], names: tuple[str, str], ahead: int) -> list[str]:
    """Checks the order of the copies of an all-reduce in 12 pieces, of which `ahead` go out at once at least.

    The names are those of the functions that copy out and in.
    """
    events: list[str] = []
    functions = [getattr(devices.StreamCopies, name) for name in names]

    def note(kind: str, function: Callable) -> Callable:
        def noted(self: object, copies: object, *more: object) -> object:
            copies = list(copies)
            result = function(self, copies, *more)
            if copies:
                events.append(kind)
            return result

        return noted

    tensor = torch.ones(12 * pieces.PIECE_BYTES // 4, device=device)
    for name, function, kind in zip(names, functions, ("out", "in")):
        setattr(devices.StreamCopies, name, note(kind, function))
    try:
        reduce(tensor)
    finally:
        for name, function in zip(names, functions):
            setattr(devices.StreamCopies, name, function)
    assert events.count("out") == events.count("in") == 12, events
    assert events[:ahead] == ahead * ["out"], events
    assert is_all(tensor, size)
    return events


# The parts that `--without` takes away.


def _nothing(*ignored: object) -> None:
    return None


def without_the_mark_before_reads() -> None:
    read = devices.StreamCopies.read

    def early(self: devices.StreamCopies, copies: object, mark: object) -> object:
        return read(self, copies, self._read_stream.record_event())

    devices.StreamCopies.read = early


def without_the_wait_for_reads() -> None:
    read = devices.StreamCopies.read
    devices.StreamCopies.read = lambda *arguments: (read(*arguments), _nothing)[1]


def without_the_wait_for_reads_of_short_blocking_calls() -> None:
    devices.StreamCopies.read_now = lambda self, host, own: host.copy_(own, non_blocking=True)


def without_the_wait_for_reads_of_blocking_calls() -> None:
    read = devices.StreamCopies.read_here
    devices.StreamCopies.read_here = lambda *arguments: (read(*arguments), _nothing)[1]


def without_the_stream_of_spare_memory() -> None:
    def take(self: staging.Stager, access: devices.Access, stream: torch.Stream, length: int) -> object:
        return self._spare.pop()[0] if self._spare else self._buffers.take(access, length)

    staging.Stager._take_spare = take


def without_the_mark_before_writes() -> None:
    write = devices.StreamCopies.write

    def early(self: devices.StreamCopies, copies: object, mark: object, then: object = None) -> object:
        return write(self, copies, self._write_stream.record_event(), then)

    devices.StreamCopies.write = early


def without_the_order_of_later_work() -> None:
    devices.StreamCopies.follow = _nothing


def without_the_queue_of_host_calls() -> None:
    staging.Stager.is_busy = staging.Stager.has_unposted = False


def without_the_tensors() -> None:
    keep = staging.Stager.keep
    staging.Stager.keep = lambda self, events, *objects: keep(self, events)


def main() -> None:
    global device, delays
    torch.set_num_threads(1)
    arguments = sys.argv[1:]
    device = accelerators.take_option(arguments, device)
    if arguments[:1] == ["--without"]:
        globals()[f"without_{arguments[1]}"]()
        del arguments[:2]
    device = accelerators.load(device)
    pieces.PIECE_BYTES = 8 << 10
    dist.init_process_group("tbccl")
    delays = accelerators.Delays(device)
    passed = runner.run(globals(), arguments)
    delays.end()
    dist.destroy_process_group()
    print(f"@passed {rank} {passed} checks of orders passed", flush=True)


if __name__ == "__main__":
    main()
