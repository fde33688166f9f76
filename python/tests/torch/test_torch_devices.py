"""Tensors of devices: on a stand-in device, whose streams are asynchronous and late."""

from __future__ import annotations

import os

import pytest
import standin
from jobs import ROOT, JobResult, forkserver, job, run, tbccl


@pytest.fixture(scope="module", autouse=True)
def _device() -> None:
    """Compiles the device before the ranks need it."""
    if standin.compiler() is None:
        missing = "the stand-in device needs a C++ compiler; set CXX to its path"
        assert os.environ.get("TBCCL_TEST_REQUIRE_ALL") != "1", missing
        pytest.skip(missing)
    standin.build()


def check_all_ranks_print(result: JobResult, word: str, ranks: int) -> None:
    output = result.expect_success()
    assert output.count(word) == ranks, output[-4000:]


# `mixed`: a rank whose tensors are copied in pieces, beside one whose tensors are used in place.
@pytest.mark.parametrize("memory", ["standin", "shared", "metal", "pinned", "mixed"])
def test_every_operation_is_right_on_a_device(memory: str) -> None:
    result = job("operations.py", "--device", memory)
    check_all_ranks_print(result, "checks of operations passed", 2)


@pytest.mark.parametrize("memory", ["standin", "pinned"])
def test_calls_and_late_streams_keep_their_order(memory: str) -> None:
    check_all_ranks_print(job("ordering.py", "--device", memory), "checks of orders passed", 2)


def test_training_on_a_device_gives_the_parameters_of_one_process() -> None:
    wrapped = ("ddp", "ddp_with_a_hook_of_two_calls", "fsdp1", "fsdp2", "zero_redundancy")
    ways = [f"train_{way}" for way in (*wrapped, "from_a_checkpoint", "tensor_parallel", "dtensors")]
    result = job("training.py", "--device", "standin", *ways)
    check_all_ranks_print(result, "ways of training passed", 2)


#: Parts of what orders calls and streams, and the check that fails without each.
ORDERINGS = {
    "the_mark_before_reads": "an_input_is_read_after_the_work_that_makes_it",
    "the_wait_for_reads": "an_input_is_read_after_the_work_that_makes_it",
    "the_wait_for_reads_of_blocking_calls": "a_blocking_call_reads_after_the_work_that_makes_its_input",
    "the_wait_for_reads_of_short_blocking_calls": "a_blocking_call_reads_after_the_work_that_makes_its_input",
    "the_stream_of_spare_memory": "a_blocking_call_on_another_stream_leaves_the_result_of_the_one_before",
    "the_mark_before_writes": "an_output_is_written_after_the_work_that_reads_it",
    "the_order_of_later_work": "later_work_of_the_stream_sees_the_result",
    "the_queue_of_host_calls": "host_and_device_calls_keep_their_order",
    "the_tensors": "memory_stays_until_the_copies_are_done",
}


@pytest.mark.parametrize("part", ORDERINGS)
def test_the_check_of_an_order_fails_without_it(part: str) -> None:
    check = f"check_{ORDERINGS[part]}"
    result = job("ordering.py", "--without", part, check)
    assert result.status != 0 and f"fails {check}" in result.output, result.output[-4000:]


def test_groups_with_a_backend_for_each_device() -> None:
    check_all_ranks_print(job("composites.py"), "checks of composites passed", 2)


def run_program(text: str) -> str:
    """Runs a program text on two ranks, and returns their output."""
    command = [tbccl(), "run", "-n", "2", "--timeout", "100", "--", *forkserver(), "-c", PRELUDE + text]
    return run(command).expect_success()


PRELUDE = f"""
import sys; sys.path.insert(0, {str(standin.FOLDER)!r})
import standin, torch, torch.distributed as dist, warnings
"""


def test_memory_that_the_host_cannot_address_is_copied_with_one_warning() -> None:
    output = run_program("""
standin.load(is_shared=True)
def refuse(storage):
    raise RuntimeError("private storage")
torch.standin._host_alias_storage = refuse
dist.init_process_group("tbccl")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        tensor = torch.arange(5.0).to("standin")
        dist.all_reduce(tensor)
        assert tensor.tolist() == [0, 2, 4, 6, 8], tensor
texts = [str(each.message) for each in caught if "tbccl" in str(each.message)]
assert len(texts) == 1 and "private storage" in texts[0], texts
print("copied", flush=True)
""")
    assert output.count("copied") == 2, output


REDUCTIONS = """
import accelerators, gc
def reduce_all():
    dist.init_process_group("tbccl")
    for count in (5, 1 << 20, 5 << 20):
        tensor = torch.ones(count, device="standin")
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, async_op=True).wait()
        assert bool((tensor.cpu() == 4).all())
    memory = [buffer.address for buffer, *_ in dist.group.WORLD._stager._buffers._free]
    dist.destroy_process_group()
    gc.collect()
    return memory
"""


def test_pieces_lie_in_registered_memory_that_is_pinned_while_they_exist() -> None:
    output = run_program(REDUCTIONS + """
standin.load()
pinned, unpinned = accelerators.pin_registered_memory()
memory = reduce_all()
assert memory and set(memory) <= set(pinned), (memory, pinned)
assert sorted(unpinned) == sorted(pinned), (unpinned, pinned)
print("unpinned", flush=True)
""")
    assert output.count("unpinned") == 2, output


def test_pieces_lie_in_memory_of_torch_where_registered_memory_cannot_be_pinned() -> None:
    output = run_program(REDUCTIONS + """
standin.load()
tried, _ = accelerators.pin_registered_memory(can_pin=False)
memory = reduce_all()
assert len(tried) == 1 and memory and tried[0] not in memory, (tried, memory)
print("copied", flush=True)
""")
    assert output.count("copied") == 2, output


def test_memory_of_metal_is_used_in_place_where_its_buffer_is_shared() -> None:
    """By the Objective-C runtime, for versions of torch without a host alias."""
    output = run_program("""
standin.load_as_metal()
dist.init_process_group("tbccl")
told = torch.ops.standin.count_told_addresses
def reduce(*shape):
    tensor = torch.ones(shape, device="standin")
    view = tensor[1:] if tensor.dim() else tensor
    dist.all_reduce(view)
    assert bool((view.cpu() == 2).all())
    assert tensor.cpu().sum() == view.numel() + tensor.numel()
reduce(100, 3)
assert told() > 0
torch.ops.standin.set_private(True)
before = told()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        reduce(100)
texts = [str(each.message) for each in caught if "tbccl" in str(each.message)]
assert len(texts) == 1 and "storage mode 2" in texts[0], texts
assert told() == before
print("reduced", flush=True)
""")
    assert output.count("reduced") == 2, output


def test_an_alias_of_metal_keeps_the_memory() -> None:
    """As that of torch does: the request of a message holds the alias only."""
    output = run_program("""
standin.load_as_metal()
import tbccl.torch.devices as devices
tensor = torch.ones(1000, device="standin")
torch.standin.synchronize()
alias = devices.access_to(tensor.device).alias(tensor)
del tensor
torch.standin.synchronize()
assert bool((alias.view(torch.float32) == 1).all())
print("kept", flush=True)
""")
    assert output.count("kept") == 2, output


def test_a_device_without_streams_is_copied_with_one_warning() -> None:
    output = run_program("""
standin.load()
import tbccl.torch.devices as devices
def lacks(*arguments, **settings):
    raise RuntimeError("no streams here")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    made, torch.Stream = torch.Stream, lacks
    assert type(devices.access_to(torch.device("standin", 0))) is devices.BlockingCopies
    torch.Stream = made
assert "no streams here" in str(caught[0].message)
standin.set_delay(0.001)
dist.init_process_group("tbccl")
for _ in range(3):
    tensor, output = torch.arange(5.0).to("standin"), torch.empty(2, 5, device="standin")
    dist.all_reduce(tensor, async_op=True).wait()
    dist.all_gather_into_tensor(output, tensor)
    assert output.tolist() == 2 * [[0, 2, 4, 6, 8]], output
standin.set_delay(0)
print("copied", flush=True)
""")
    assert output.count("copied") == 2, output


def test_each_thread_has_its_own_objects_of_the_streams() -> None:
    """Up to torch 2.10, two threads can't enter a stream by one object at the same time."""
    output = run_program("""
import threading
standin.load()
import tbccl.torch.devices as devices
access = devices.access_to(torch.device("standin", 0))
found = []
def note():
    found.append((access._read_stream, access._write_stream))
threads = [threading.Thread(target=note) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
note()
reads, writes = zip(*found)
assert len(set(map(id, reads + writes))) == 6
assert len({each.stream_id for each in reads}) == len({each.stream_id for each in writes}) == 1
assert reads[0].stream_id != writes[0].stream_id
print("own", flush=True)
""")
    assert output.count("own") == 2, output


def test_a_short_blocking_call_runs_on_the_thread_that_issues_it() -> None:
    output = run_program("""
import threading
standin.load()
standin.set_delay(0.001)
dist.init_process_group("tbccl")
copiers = lambda: sorted(thread.name for thread in threading.enumerate() if "tbccl-copy" in thread.name)
ones = [torch.ones(1000, device="standin") for _ in range(20)]
for tensor in ones:
    tensor.mul_(2)
    dist.all_reduce(tensor)
    tensor.add_(1)
assert copiers() == [], copiers()
# While a call waits to be submitted, later ones queue behind it.
long = torch.ones(3 << 20, device="standin")
work = dist.all_reduce(long, async_op=True)
dist.all_reduce(ones[0])
work.wait()
assert copiers() == ["tbccl-copy-in", "tbccl-copy-out"], copiers()
assert ones[0].tolist() == 1000 * [10] and ones[1].tolist() == 1000 * [5] and bool((long == 2).all())
standin.set_delay(0)
print("reduced", flush=True)
""")
    assert output.count("reduced") == 2, output


def test_a_group_is_bound_to_its_device() -> None:
    check_all_ranks_print(job("binding.py"), "checks of bound groups passed", 2)


def test_a_signal_handler_cannot_wait_for_a_call_behind_the_one_that_it_interrupts() -> None:
    output = run_program("""
import os, signal, tbccl, threading, time
standin.load()
dist.init_process_group("tbccl")
long, other = (torch.ones(1 << 20, device="standin") for _ in range(2))
def handle(*_):
    for call in (
        lambda: dist.all_reduce(other),
        lambda: dist.all_reduce(other, async_op=True).wait(),
    ):
        try:
            call()
        except tbccl.UsageError as error:
            print("refused:", error, flush=True)
signal.signal(signal.SIGUSR1, handle)
if dist.get_rank() == 0:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1)).start()
else:
    time.sleep(1.5)
dist.all_reduce(long)
if dist.get_rank() == 1:
    # The peer has issued this call in its handler.
    dist.all_reduce(other, async_op=True).wait()
dist.barrier()
assert bool((long == 2).all()) and bool((other == 2).all()), (long, other)
print("went on", flush=True)
""")
    assert output.count("refused: a signal handler can't wait") == 2 and output.count("went on") == 2, output


@pytest.mark.parametrize(
    ("moment", "count"),
    [("read_now", 1 << 18), ("write_here", 1 << 21)],
    ids=["one piece", "several pieces"],
)
def test_a_handler_may_destroy_the_group_between_the_copies_of_its_call(moment: str, count: int) -> None:
    output = run_program(f"""
import os, signal, tbccl, tbccl.torch.devices as devices, time
standin.load()
dist.init_process_group("tbccl")
tensor = torch.ones({count}, device="standin")
dist.all_reduce(tensor)
started = time.monotonic()
if dist.get_rank() == 0:
    signal.signal(signal.SIGUSR1, lambda *_: dist.destroy_process_group())
    copy = devices.StreamCopies.{moment}
    def interrupted(*arguments):
        devices.StreamCopies.{moment} = copy
        os.kill(os.getpid(), signal.SIGUSR1)
        return copy(*arguments)
    devices.StreamCopies.{moment} = interrupted
    # Copies are under way when the call ends. The device frees host memory at once if it is dropped.
    standin.set_delay(0.1)
    try:
        dist.all_reduce(tensor)
    except tbccl.Error as error:
        print("ended:", error, flush=True)
    assert not dist.is_initialized()
else:
    try:
        dist.all_reduce(tensor)
        dist.barrier()
    except tbccl.Error as error:
        print("ended:", error, flush=True)
assert time.monotonic() - started < 20
print("left", flush=True)
""")
    assert output.count("ended:") == 2 and output.count("left") == 2, output


#: Begins the programs that have two devices, of which the second one is late on rank 1.
TWO_DEVICES = """
standin.load(devices=2)
standin.set_delay(0.002)
dist.init_process_group("tbccl")
rank, group = dist.get_rank(), dist.group.WORLD
first, second = devices = [torch.device("standin", each) for each in (0, 1)]
def full(value, device):
    tensor = torch.full((1000,), float(value), device=device)
    torch.standin.synchronize()
    return tensor
def occupy_second():
    scratch = torch.empty(1, device=second)
    for _ in range(200 * rank):
        scratch.fill_(0)
def is_all(tensor, value):
    return tensor.cpu().tolist() == 1000 * [value]
"""


def test_host_memory_of_a_batch_is_in_use_until_the_device_of_each_call_has_its_result() -> None:
    output = run_program(
        TWO_DEVICES
        + """
options = dist.BroadcastOptions()
options.rootRank = 0
for number in range(3):
    results = [full(number if rank == 0 else -1, device) for device in devices]
    later = [[full(50 if rank == 0 else -1, first) for _ in range(2)] for _ in range(3)]
    occupy_second()
    with dist._coalescing_manager(device=first, async_ops=True) as manager:
        for result in results:
            group.broadcast([result], options)
    manager.wait()
    # These need host memory when the first device has its result, and the second one waits for its own.
    for pair in later:
        torch.accelerator.current_stream(first).synchronize()
        for work in [dist.broadcast(each, 0, async_op=True) for each in pair]:
            work.wait()
    assert all(is_all(result, number) for result in results)
    assert all(is_all(each, 50) for pair in later for each in pair)
print("right", flush=True)
"""
    )
    assert output.count("right") == 2, output


def test_a_batch_copies_results_to_strided_tensors_of_two_devices() -> None:
    output = run_program(
        TWO_DEVICES
        + """
reduce, coalesced = dist.AllreduceOptions(), dist.AllreduceCoalescedOptions()
coalesced.asyncOp = False
for is_async in (True, False):
    plain = full(1, first)
    strided = torch.full((1000, 2), 1.0, device=second)[:, 0]
    torch.standin.synchronize()
    occupy_second()
    if is_async:
        with dist._coalescing_manager(device=first, async_ops=True) as manager:
            for tensor in (plain, strided):
                group.allreduce([tensor], reduce)
        manager.wait()
    else:
        group.allreduce_coalesced([plain, strided], coalesced).wait()
    assert is_all(plain, 2) and is_all(strided, 2), is_async
received = [full(-1, device) for device in devices]
sent = [full(10 * rank + device.index, device) for device in devices]
occupy_second()
works = dist.batch_isend_irecv([
    dist.P2POp(operation, tensor, 1 - rank)
    for operation, tensors in ((dist.isend, sent), (dist.irecv, received)) for tensor in tensors
])
for work in works:
    work.wait()
assert all(is_all(tensor, 10 * (1 - rank) + each) for each, tensor in enumerate(received))
print("right", flush=True)
"""
    )
    assert output.count("right") == 2, output


@pytest.mark.parametrize("option", ["--one-rank", "--pieces=2"])
def test_the_benchmark_of_devices_measures_every_length(option: str) -> None:
    """gloo, which it measures beside tbccl by default, does not serve the stand-in device."""
    output = run_program(f"""
import runpy
standin.load()
sys.argv = ["torch_devices.py", "--device=standin", "--most=4194304", "--least=262144", "--rounds=1"]
sys.argv.append({option!r})
runpy.run_path({str(ROOT / "python" / "bench" / "torch_devices.py")!r}, run_name="__main__")
""")
    # torch may print a warning before the table.
    table = output[output.index("bytes") :]
    rows = [line.split() for line in table.splitlines()]
    assert [row[0] for row in rows] == ["bytes", "262144", "1048576", "4194304"], output
    assert all(float(row[-1]) > 0 for row in rows[1:]), output


def test_a_call_with_tensors_of_two_devices_is_refused() -> None:
    output = run_program("""
standin.load()
dist.init_process_group("tbccl")
try:
    dist.all_gather_into_tensor(torch.empty(2), torch.ones(1, device="standin"))
except ValueError as error:
    print("refused:", error, flush=True)
""")
    assert output.count("must be on one device, but these are on cpu and standin:0") == 2, output


def test_nan_is_refused_where_torch_is_told_to_check() -> None:
    output = run_program("""
import os
os.environ["TORCH_DIST_NAN_CHECK"] = "1"
standin.load()
dist.init_process_group("tbccl")
rank = dist.get_rank()
nan = float("nan")
for device in ("cpu", "standin"):
    good, bad = torch.ones(3, device=device), torch.tensor([1.0, nan], device=device)
    for call in (
        lambda: dist.all_reduce(bad),
        lambda: dist.all_gather_into_tensor(torch.empty(4, device=device), bad, async_op=True),
        lambda: dist.isend(bad, 1 - rank),
    ):
        try:
            call()
        except ValueError as error:
            print("refused:", error, flush=True)
    # What a rank only writes may be anything.
    dist.broadcast(bad if rank else bad.fill_(2), 0)
    dist.all_reduce(good)
    assert bad.tolist() == [2, 2] and good.tolist() == [2, 2, 2]
""")
    assert output.count("has NaN, which TORCH_DIST_NAN_CHECK=1 refuses") == 2 * 6, output


def test_a_program_may_end_with_calls_on_a_device_in_flight() -> None:
    """Threads, copies and the network use memory that the end of the interpreter frees."""
    output = run_program("""
standin.load()
dist.init_process_group("tbccl")
group, rank = dist.new_group(), dist.get_rank()
tensor, received = torch.ones(1 << 20, device="standin"), torch.ones(4, device="standin")
dist.all_reduce(tensor, group=group)
standin.set_delay(0.01)
if rank == 0:
    # The other rank never joins this call.
    work = dist.all_reduce(tensor, group=group, async_op=True).get_future()
for _ in range(5):
    dist.all_reduce(tensor, async_op=True)
dist.irecv(received, 1 - rank)
dist.isend(received, 1 - rank)
print("leaves", flush=True)
""")
    assert output.count("leaves") == 2, output
