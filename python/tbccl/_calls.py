"""Validates the arguments of collectives and describes each call by numbers.

Each function checks the arrays against each other and returns a `Call`: the arguments of `submit`, the
objects to keep alive and the result. The caller submits the call at once, asynchronously or in a group. No
function here waits or moves data.

Shapes follow two rules. Arrays with one block for each rank have the ranks as their first dimension
(`all_gather`, `gather`, `scatter`). Arrays that are divided among the ranks are divided along their first
dimension (`reduce_scatter`, `all_to_all` and the vector forms, whose lengths count entries of that
dimension). A given `out` must match in element type and number of elements; its shape is free.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

from tbccl import _native
from tbccl._elements import DTYPE_NAMES, codec_number, empty_like, op_number, view
from tbccl._errors import InvalidArgumentError


class Call(NamedTuple):
    """One call, as the arguments of `submit`: numbers and addresses."""

    number: int
    dtype: int
    op: int
    count: Any
    send: int
    recv: int
    root: int
    #: Arrays and views that must stay alive until the call is done.
    keep: Any
    #: Array that the caller gets.
    result: Any


def _invalid(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(text, code=4)


def _output(data: Any, elements: _native.View, out: Any, shape: Sequence[int]) -> tuple[Any, _native.View]:
    """Returns the array for the result and its view: `out` if given, else a new array of `shape`.

    Raises:
        InvalidArgumentError: `out` differs from the result in element type or number of elements.
    """
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
            f"out has {out_elements.count} elements of shape {out_elements.shape}, "
            f"and the result {count} of shape {tuple(shape)}"
        )
    return out, out_elements


def _block_shape(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """Returns the shape of one of `size` equal blocks along the first dimension."""
    if not shape:
        raise _invalid("a scalar can't be divided among ranks: pass an array of one dimension or more")
    if shape[0] % size:
        raise _invalid(f"the first dimension of {tuple(shape)} can't be divided among {size} ranks")
    return (shape[0] // size, *shape[1:])


def _row_elements(shape: Sequence[int]) -> int:
    """Returns the number of elements of one entry of the first dimension."""
    if not shape:
        raise _invalid("a scalar has no first dimension to divide: pass an array of one dimension or more")
    count = 1
    for length in shape[1:]:
        count *= length
    return count


def _checked_lengths(name: str, given: Sequence[int], size: int) -> list[int]:
    """Returns `given` as integers, after checking that it has one length for each rank."""
    lengths = [int(length) for length in given]
    if len(lengths) != size or any(length < 0 for length in lengths):
        raise _invalid(f"{name} is {lengths}: pass one length, 0 or more, for each of {size} ranks")
    return lengths


def _check_total(name: str, lengths: list[int], shape: Sequence[int]) -> None:
    """Checks that `lengths` add up to the first dimension of `shape`."""
    if not shape or sum(lengths) != shape[0]:
        raise _invalid(
            f"{name} is {lengths}, {sum(lengths)} in all, and data has shape {tuple(shape)}: "
            "the lengths must add up to the first dimension"
        )


def checked_rank(root: int, size: int, name: str = "root") -> int:
    """Returns `root` if it is a rank, else raises InvalidArgumentError."""
    if not 0 <= root < size:
        raise _invalid(f"{name} {root} is not one of the ranks 0..{size}")
    return root


def checked_tag(tag: int) -> int:
    """Returns `tag` if a message may have it, else raises InvalidArgumentError."""
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
            raise _invalid("data is None: the root of a scatter passes the array")
        send = view(data)
        if not send.shape or send.shape[0] != comm.size:
            raise _invalid(f"data has shape {send.shape}: its first dimension must be the {comm.size} ranks")
        out, recv = _output(data, send, out, send.shape[1:])
        keep = (data, send, out, recv)
        return Call(_native.SCATTER, send.dtype, 0, recv.count, send.address, recv.address, root, keep, out)
    if out is None:
        raise _invalid(
            "out is None: only the root of a scatter knows the shape, so other ranks pass an array"
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
            "out is None: only the root of a scatter knows the shape, so other ranks pass an array"
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
