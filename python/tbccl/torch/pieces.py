"""Calls on tensors, their split into pieces, and the host memory of pieces.

All ranks split a call alike, from its lengths and from whether the tensors of any rank are copied. Nothing
here communicates.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from tbccl import _native

from .devices import Access, access_to

#: Bytes of host memory of a piece. All ranks must agree.
PIECE_BYTES = 4 << 20
#: Bytes of host memory of the longest blocking call that runs on its caller's thread. The threads of
#: `staging` keep the network busier in longer ones.
INLINE_BYTES = 16 << 20
#: Bytes of free host memory that a group keeps for later calls. To pin 16 MiB anew takes milliseconds.
_KEPT_BYTES = 256 << 20
#: Elements to which pieces are rounded, so that they begin at aligned addresses.
ALIGNMENT = 64
#: Collectives whose input and output are one buffer.
IN_PLACE = {_native.ALL_REDUCE, _native.ALL_REDUCE_QUANTIZED, _native.REDUCE, _native.BROADCAST}
#: Whether the input and the output have a block for each rank, by collective. Others are not split.
_MANY_BLOCKS = {
    _native.ALL_REDUCE: (False, False),
    _native.REDUCE: (False, False),
    _native.BROADCAST: (False, False),
    _native.ALL_GATHER: (False, True),
    _native.GATHER: (False, True),
    _native.REDUCE_SCATTER: (True, False),
    _native.SCATTER: (True, False),
    _native.ALL_TO_ALL: (True, True),
}


class Call(NamedTuple):
    """A collective on plain tensors."""

    collective: int
    dtype: int
    op: int
    #: Elements of a block, or the lengths of all blocks.
    count: Any
    send: torch.Tensor | None
    recv: torch.Tensor | None
    #: Root rank, or the codec.
    root: int = 0

    def by_address(self) -> tuple:
        """Returns the arguments of the communicator's ``submit``, for tensors in host memory."""
        return self.by_address_of(self.send, self.recv)

    def by_address_of(self, send: torch.Tensor | None, recv: torch.Tensor | None) -> tuple:
        """Returns the arguments of ``submit`` with the memory of other tensors."""
        return (
            self.collective,
            self.dtype,
            self.op,
            self.count,
            0 if send is None else send.data_ptr(),
            0 if recv is None else recv.data_ptr(),
            self.root,
        )

    def reads(self, rank: int) -> bool:
        """Returns whether the call reads ``send`` on a rank."""
        return self.send is not None and (self.collective != _native.BROADCAST or self.root == rank)

    @property
    def device(self) -> torch.device | None:
        """Device of the tensors; None: host memory.

        Raises:
            ValueError: The tensors are on several devices.
        """
        send, recv = self.send, self.recv
        tensor = recv if send is None else send
        if tensor is None or (tensor.is_cpu and (recv is None or recv.is_cpu)):
            return None
        device = tensor.device
        if recv is not None and recv is not tensor and recv.device != device:
            raise ValueError(
                f"the tensors of a call must be on one device, but these are on "
                f"{' and '.join(sorted(map(str, (device, recv.device))))}: move them to one"
            )
        return device


def blocks_of(call: Call, ranks: int) -> tuple[int, int]:
    """Returns the number of blocks of the input and of the output, on ranks that have them."""
    sent, received = _MANY_BLOCKS.get(call.collective, (False, False))
    return ranks if sent else 1, ranks if received else 1


def item_bytes(call: Call, ranks: int) -> int:
    """Returns the bytes of an element of a call that may be split; 0 for other calls."""
    if call.collective not in _MANY_BLOCKS or not call.count or call.device is None:
        return 0
    blocks = blocks_of(call, ranks)
    tensor, blocks_of_it = (call.recv, blocks[1]) if call.send is None else (call.send, blocks[0])
    return tensor.nbytes // (blocks_of_it * call.count)


def common_bytes(call: Call, ranks: int) -> int | None:
    """Returns the most bytes of host memory that a call needs on any rank; None: ranks may not know it."""
    if call.device is None:
        return 0
    if call.collective not in _MANY_BLOCKS:
        return None
    sides = max(blocks_of(call, ranks)) if call.collective in IN_PLACE else sum(blocks_of(call, ranks))
    return item_bytes(call, ranks) * sides * call.count


def step_of(item: int) -> int:
    """Returns the most elements of a piece, given the bytes of host memory that an element needs."""
    return max(1, PIECE_BYTES // item // ALIGNMENT) * ALIGNMENT


def split(call: Call, ranks: int, splits_all: bool) -> Iterator[Call]:
    """Yields the parts of a call in a group of ``ranks``: on blocks of bytes that are short enough, or the
    whole call.

    Memory that is used in place is split if ``splits_all``.
    """
    item, blocks = item_bytes(call, ranks), blocks_of(call, ranks)
    if not item or (access_to(call.device).is_in_place and not splits_all):
        yield call
        return
    count, step = call.count, step_of(item * max(blocks))
    if count <= step:
        yield call
        return
    send, recv = (
        None if tensor is None else as_bytes(tensor).view(each, -1)
        for tensor, each in zip((call.send, call.recv), blocks)
    )
    for begin in range(0, count, step):
        end = min(begin + step, count)
        columns = slice(begin * item, end * item)
        yield call._replace(
            count=end - begin,
            send=None if send is None else send[:, columns],
            recv=None if recv is None else recv[:, columns],
        )


class HostBuffer:
    """Host memory for the copies of a tensor."""

    __slots__ = ("memory", "address", "_view")

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.address = memory.data_ptr()
        self._view = memory

    def view_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor in this memory with the type and shape of a tensor."""
        view = self._view
        if view.dtype is not tensor.dtype or view.shape != tensor.shape:
            view = self._view = self.memory[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        return view


class HostBuffers:
    """Host memory for copies, kept for later pieces."""

    def __init__(self, allocate: Callable[[Access, int], torch.Tensor]) -> None:
        """Keeps memory of a function that allocates bytes for copies."""
        self._allocate = allocate
        self._free: deque[tuple[HostBuffer, Access, Any]] = deque()
        #: Bytes of the free buffers.
        self._bytes = 0
        self._lock = threading.Lock()

    def take(self, access: Access, count: int) -> HostBuffer:
        """Returns a buffer of ``count`` bytes at least whose earlier copies are done."""
        with self._lock:
            for index, (buffer, owner, event) in enumerate(self._free):
                length = buffer.memory.numel()
                fits = owner is access and count <= length <= 4 * max(count, 4096)
                if fits and _is_over(owner, event):
                    del self._free[index]
                    self._bytes -= length
                    return buffer
        return HostBuffer(self._allocate(access, 1 << max(12, (count - 1).bit_length())))

    def give(self, buffer: HostBuffer, access: Access, event: Any) -> None:
        """Takes a buffer back, which is in use until the event; None: it is not in use."""
        with self._lock:
            self._free.append((buffer, access, event))
            self._bytes += buffer.memory.numel()
            while self._bytes > _KEPT_BYTES and _is_over(*self._free[0][1:]):
                self._bytes -= self._free.popleft()[0].memory.numel()


def _is_over(access: Access, event: Any) -> bool:
    return event is None or access.is_done(event)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of a plain tensor, in one dimension."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def host_bytes(part: Call) -> int:
    """Returns the bytes of host memory that a part needs."""
    if part.device is None:
        return 0
    sides = (part.send,) if part.collective in IN_PLACE else (part.send, part.recv)
    return sum(tensor.nbytes for tensor in sides if tensor is not None)
