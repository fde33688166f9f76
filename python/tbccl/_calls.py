"""What every collective needs of its arguments, and what it gives.

Each function checks arrays against each other and returns a `Call`: the arguments of `submit`, what it works on, and its
result. Whoever has the call makes it at once, later, or in a group. No function waits or moves anything.

Shapes follow one rule: what has a block for each rank has the ranks as its first dimension (`all_gather`, `gather`,
`scatter`), and what is divided among ranks is divided along its first dimension (`reduce_scatter`, `all_to_all`, and the forms
with lengths, whose lengths are of that dimension). Where `out` is given only its number of elements and its type must fit.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

from tbccl import _native
from tbccl._elements import DTYPE_NAMES, codec_number, empty_like, op_number, view
from tbccl._errors import InvalidArgumentError


class Call(NamedTuple):
    """A call by its numbers: the arguments of `submit`."""

    number: int
    dtype: int
    op: int
    count: Any
    send: int
    recv: int
    root: int
    #: What must stay alive and where it is.
    keep: Any
    #: What the caller gets.
    result: Any


def _invalid(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(text, code=4)


def _output(data: Any, elements: _native.View, out: Any, shape: Sequence[int]) -> tuple[Any, _native.View]:
    """The result's array, and how it is seen: a new one, or the one given, which must have as many elements."""
    if out is None:
        out = empty_like(data, shape, elements.dtype)
        return out, view(out, True)
    out_elements = view(out, True)
    if out_elements.dtype != elements.dtype:
        raise _invalid(
            f"out has {DTYPE_NAMES[out_elements.dtype]} elements, and data {DTYPE_NAMES[elements.dtype]}"
        )
    count = 1
    for length in shape:
        count *= length
    if out_elements.count != count:
        raise _invalid(
            f"out has {out_elements.count} elements of shape {out_elements.shape}, and the result {count} of shape {tuple(shape)}"
        )
    return out, out_elements


def _block_shape(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """One of `size` equal parts, along the first dimension."""
    if not shape:
        raise _invalid(
            "a single number can't be divided among ranks: give an array of one dimension at least"
        )
    if shape[0] % size:
        raise _invalid(f"the first dimension of {tuple(shape)} can't be divided among {size} ranks")
    return (shape[0] // size, *shape[1:])


def _row_elements(shape: Sequence[int]) -> int:
    """Elements of one entry of the first dimension."""
    if not shape:
        raise _invalid("a single number has no first dimension to be divided along")
    count = 1
    for length in shape[1:]:
        count *= length
    return count


def _checked_lengths(name: str, given: Sequence[int], size: int) -> list[int]:
    lengths = [int(length) for length in given]
    if len(lengths) != size or any(length < 0 for length in lengths):
        raise _invalid(f"{name} is {lengths}: it has a length, 0 or more, for each of {size} ranks")
    return lengths


def _check_total(name: str, lengths: list[int], shape: Sequence[int]) -> None:
    if not shape or sum(lengths) != shape[0]:
        raise _invalid(
            f"{name} is {lengths}, {sum(lengths)} together, and the first dimension of data has shape {tuple(shape)}"
        )


def checked_rank(root: int, size: int, name: str = "root") -> int:
    """A rank that there is."""
    if not 0 <= root < size:
        raise _invalid(f"{name} {root} is not one of the ranks 0..{size}")
    return root


def checked_tag(tag: int) -> int:
    """A tag that a message may have."""
    if not 0 <= tag < 1 << 31:
        raise _invalid(f"tag {tag} is not one of 0..{1 << 31}")
    return tag


def all_reduce(comm: Any, data: Any, op: Any, out: Any) -> Call:
    send = view(data, out is data)
    if out is data:
        out, recv = data, send
    else:
        out, recv = _output(data, send, out, send.shape)
    numbers = (_native.ALL_REDUCE, send.dtype, op_number(op), send.count, send.address, recv.address, 0)
    return Call(*numbers, (data, send, out, recv), out)


def all_reduce_quantized(comm: Any, data: Any, codec: Any, op: Any, out: Any) -> Call:
    call = all_reduce(comm, data, op, out)
    return call._replace(number=_native.ALL_REDUCE_QUANTIZED, root=codec_number(codec))


def scan(comm: Any, data: Any, op: Any, out: Any) -> Call:
    return all_reduce(comm, data, op, out)._replace(number=_native.SCAN)


def exclusive_scan(comm: Any, data: Any, op: Any, out: Any) -> Call:
    return all_reduce(comm, data, op, out)._replace(number=_native.EXCLUSIVE_SCAN)


def reduce(comm: Any, data: Any, op: Any, root: int, out: Any) -> Call:
    root = checked_rank(root, comm.size)
    if comm.rank == root:
        return all_reduce(comm, data, op, out)._replace(number=_native.REDUCE, root=root)
    send = view(data)
    numbers = (_native.REDUCE, send.dtype, op_number(op), send.count, send.address, 0, root)
    return Call(*numbers, (data, send), None)


def broadcast(comm: Any, data: Any, root: int) -> Call:
    elements = view(data, comm.rank != root)
    address = elements.address
    numbers = (
        _native.BROADCAST,
        elements.dtype,
        0,
        elements.count,
        address,
        address,
        checked_rank(root, comm.size),
    )
    return Call(*numbers, (data, elements), data)


def all_gather(comm: Any, data: Any, out: Any) -> Call:
    send = view(data)
    out, recv = _output(data, send, out, (comm.size, *send.shape))
    numbers = (_native.ALL_GATHER, send.dtype, 0, send.count, send.address, recv.address, 0)
    return Call(*numbers, (data, send, out, recv), out)


def reduce_scatter(comm: Any, data: Any, op: Any, out: Any) -> Call:
    send = view(data)
    out, recv = _output(data, send, out, _block_shape(send.shape, comm.size))
    numbers = (_native.REDUCE_SCATTER, send.dtype, op_number(op), recv.count, send.address, recv.address, 0)
    return Call(*numbers, (data, send, out, recv), out)


def all_to_all(comm: Any, data: Any, out: Any) -> Call:
    send = view(data)
    _block_shape(send.shape, comm.size)
    out, recv = _output(data, send, out, send.shape)
    count = send.count // comm.size
    numbers = (_native.ALL_TO_ALL, send.dtype, 0, count, send.address, recv.address, 0)
    return Call(*numbers, (data, send, out, recv), out)


def gather(comm: Any, data: Any, root: int, out: Any) -> Call:
    root = checked_rank(root, comm.size)
    if comm.rank == root:
        return all_gather(comm, data, out)._replace(number=_native.GATHER, root=root)
    send = view(data)
    return Call(_native.GATHER, send.dtype, 0, send.count, send.address, 0, root, (data, send), None)


def scatter(comm: Any, data: Any, root: int, out: Any) -> Call:
    root = checked_rank(root, comm.size)
    if comm.rank == root:
        if data is None:
            raise _invalid("data is None, and this rank is the root of the scatter")
        send = view(data)
        if not send.shape or send.shape[0] != comm.size:
            raise _invalid(
                f"the first dimension of data is to be the {comm.size} ranks, and its shape is {send.shape}"
            )
        out, recv = _output(data, send, out, send.shape[1:])
        keep = (data, send, out, recv)
        return Call(_native.SCATTER, send.dtype, 0, recv.count, send.address, recv.address, root, keep, out)
    if out is None:
        raise _invalid(
            "out is None: only the root of a scatter knows the shape, so the others give an array for the result"
        )
    recv = view(out, True)
    return Call(_native.SCATTER, recv.dtype, 0, recv.count, 0, recv.address, root, (out, recv), out)


def all_gather_v(comm: Any, data: Any, lengths: Sequence[int], out: Any) -> Call:
    send = view(data)
    counts = _checked_lengths("lengths", lengths, comm.size)
    row_elements = _row_elements(send.shape)
    if counts[comm.rank] != send.shape[0]:
        raise _invalid(f"lengths says {counts[comm.rank]} for this rank, and data has shape {send.shape}")
    out, recv = _output(data, send, out, (sum(counts), *send.shape[1:]))
    block_counts = (None, [count * row_elements for count in counts])
    numbers = (_native.ALL_GATHER_V, send.dtype, 0, block_counts, send.address, recv.address, 0)
    return Call(*numbers, (data, send, out, recv), out)


def gather_v(comm: Any, data: Any, lengths: Sequence[int], root: int, out: Any) -> Call:
    root = checked_rank(root, comm.size)
    if comm.rank == root:
        return all_gather_v(comm, data, lengths, out)._replace(number=_native.GATHER_V, root=root)
    send = view(data)
    counts = _checked_lengths("lengths", lengths, comm.size)
    block_counts = (None, [count * _row_elements(send.shape) for count in counts])
    return Call(_native.GATHER_V, send.dtype, 0, block_counts, send.address, 0, root, (data, send), None)


def reduce_scatter_v(comm: Any, data: Any, lengths: Sequence[int], op: Any, out: Any) -> Call:
    send = view(data)
    counts = _checked_lengths("lengths", lengths, comm.size)
    _check_total("lengths", counts, send.shape)
    row_elements = _row_elements(send.shape)
    out, recv = _output(data, send, out, (counts[comm.rank], *send.shape[1:]))
    block_counts = ([count * row_elements for count in counts], None)
    numbers = (
        _native.REDUCE_SCATTER_V,
        send.dtype,
        op_number(op),
        block_counts,
        send.address,
        recv.address,
        0,
    )
    return Call(*numbers, (data, send, out, recv), out)


def scatter_v(comm: Any, data: Any, lengths: Sequence[int], root: int, out: Any) -> Call:
    root = checked_rank(root, comm.size)
    counts = _checked_lengths("lengths", lengths, comm.size)
    if comm.rank == root:
        send = view(data)
        _check_total("lengths", counts, send.shape)
        row_elements = _row_elements(send.shape)
        out, recv = _output(data, send, out, (counts[root], *send.shape[1:]))
        block_counts = ([count * row_elements for count in counts], None)
        keep = (data, send, out, recv)
        return Call(
            _native.SCATTER_V, send.dtype, 0, block_counts, send.address, recv.address, root, keep, out
        )
    if out is None:
        raise _invalid(
            "out is None: only the root of a scatter knows the shape, so the others give an array for the result"
        )
    recv = view(out, True)
    row_elements = _row_elements(recv.shape)
    block_counts = ([count * row_elements for count in counts], None)
    return Call(_native.SCATTER_V, recv.dtype, 0, block_counts, 0, recv.address, root, (out, recv), out)


def all_to_all_v(comm: Any, data: Any, sent: Sequence[int], received: Sequence[int], out: Any) -> Call:
    send = view(data)
    sent, received = (
        _checked_lengths("send_lengths", sent, comm.size),
        _checked_lengths("recv_lengths", received, comm.size),
    )
    _check_total("send_lengths", sent, send.shape)
    row_elements = _row_elements(send.shape)
    out, recv = _output(data, send, out, (sum(received), *send.shape[1:]))
    block_counts = ([count * row_elements for count in sent], [count * row_elements for count in received])
    numbers = (_native.ALL_TO_ALL_V, send.dtype, 0, block_counts, send.address, recv.address, 0)
    return Call(*numbers, (data, send, out, recv), out)


def barrier(comm: Any) -> Call:
    return Call(_native.BARRIER, _native.UINT8, 0, 0, 0, 0, 0, None, None)


def send(comm: Any, data: Any, to: int) -> Call:
    elements = view(data)
    return Call(
        _native.SEND,
        elements.dtype,
        0,
        elements.count,
        elements.address,
        0,
        checked_rank(to, comm.size, "peer"),
        (data, elements),
        None,
    )


def recv(comm: Any, out: Any, source: int) -> Call:
    elements = view(out, True)
    return Call(
        _native.RECV,
        elements.dtype,
        0,
        elements.count,
        0,
        elements.address,
        checked_rank(source, comm.size, "peer"),
        (out, elements),
        out,
    )
