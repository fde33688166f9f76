"""Invalid arguments on one rank of two: each raises an exception that names the remedy.

The communicator stays usable.
"""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from typing import Iterator

import numpy as np

import tbccl
from tbccl import _native


@contextmanager
def refused(message: str, error_type: type[BaseException] = tbccl.InvalidArgumentError) -> Iterator[None]:
    try:
        yield
    except error_type as error:
        assert message in str(error), f"{error!r} does not contain {message!r}"
        assert isinstance(error, tbccl.Error) or error_type not in tbccl.__dict__.values()
    else:
        raise AssertionError(f"nothing was refused: {message}")


class CudaArray:
    """An array in the memory of a CUDA device."""

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **_):
        raise AssertionError("memory of a device was requested")


def arrays(comm: tbccl.Communicator) -> None:
    square = np.arange(16, dtype=np.float32).reshape(4, 4)
    with refused("are not contiguous"):
        comm.all_reduce(square.T)
    with refused("numpy.ascontiguousarray()"):
        comm.all_reduce(square[:, :2])
    with refused("are not contiguous"):
        comm.all_reduce(square, out=square[::-1])
    frozen = square.copy()
    frozen.flags.writeable = False
    with refused("read-only"):
        comm.all_reduce(square, out=frozen)
    with refused("read-only"):
        comm.all_reduce(frozen, out=frozen)
    with refused("read-only"):
        comm.recv(b"1234", 1)
    with refused("out has float64 elements, and data float32"):
        comm.all_reduce(square, out=square.astype(np.float64))
    with refused("out has 3 elements"):
        comm.all_gather(square, out=np.empty(3, np.float32))
    texts, objects = np.zeros(3, "U2"), np.array([object()])
    for unsupported in (np.zeros(3, np.complex128), np.zeros(3, ">f4"), texts, objects):
        with refused("tbccl does not support" if unsupported.dtype != object else "format `O`"):
            comm.all_reduce(unsupported)
    for not_an_array in (None, 3.0, [1.0, 2.0], "text", object()):
        with refused("neither the buffer protocol nor DLPack"):
            comm.all_reduce(not_an_array)
    with refused("CUDA device"):
        comm.all_reduce(CudaArray())
    with refused("overlap"):
        comm.all_reduce(square.ravel()[:8], out=square.ravel()[4:12])


def arguments(comm: tbccl.Communicator) -> None:
    data = np.ones(4, np.float32)
    with refused("there are sum, prod"):
        comm.all_reduce(data, "summ")
    with refused("there are sum, prod"):
        comm.all_reduce(data, 77)
    with refused("", tbccl.IllegalOperationError):
        comm.all_reduce(data, "band")
    with refused("there are int8"):
        comm.all_reduce_quantized(data, "int7")
    with refused("root 2 is not one of the ranks 0..2"):
        comm.broadcast(data, 2)
    with refused("root -1"):
        comm.reduce(data, root=-1)
    with refused("peer 9"):
        comm.send(data, 9)
    with refused("can't be divided among 2 ranks"):
        comm.reduce_scatter(np.ones(3, np.float32))
    with refused("can't be divided"):
        comm.all_to_all(np.array(1.0))
    with refused("only the root of a scatter knows the shape"):
        comm.scatter(None, root=1 - comm.rank)
    with refused("data is None"):
        comm.scatter(None, root=comm.rank)
    with refused("lengths is [1]"):
        comm.all_gather_v(data, [1])
    with refused("data has shape (4,)"):
        comm.all_gather_v(data, [1, 1])
    with refused("send_lengths is [1, 2]"):
        comm.all_to_all_v(data, [1, 2], [1, 2])
    with refused("timeout is -1"):
        comm.all_reduce(data, timeout=-1)
    with refused("0 s leaves no time"):
        comm.all_reduce(data, timeout=0)
    with refused("did you mean `ring`", tbccl.UnknownNameError):
        comm.with_options(algorithm="rong")
    with refused("reproducible", tbccl.UnknownNameError):
        comm.with_options(numerics="exact")
    with refused("is no element type"):
        comm.empty(3, "float31")
    with refused("is too large"):
        comm.empty([1 << 40, 1 << 40], "float64")
    with refused("color is -2"):
        comm.split(-2)
    with refused("can't be memory for a shape of [-1]"):
        comm.empty(-1)
    with refused("a unique id has 128 bytes"):
        tbccl.Communicator.from_unique_id(b"short", 0, 1)
    with refused("invalid unique id"):
        tbccl.Communicator.from_unique_id(bytes(128), 0, 1)
    with refused("did you mean", tbccl.UnknownNameError):
        tbccl.init(tbccl.unique_id(), 0, 1, options={"TIMEOT": 3})
    with refused("needs a rank and a size"):
        tbccl.init(tbccl.unique_id())
    with refused("was called before", tbccl.UsageError):
        tbccl.init()


def raw(comm: tbccl.Communicator) -> None:
    data = np.ones(4, np.float32)
    address = data.ctypes.data
    with refused("99 is not the number of a call"):
        comm.submit(99, 7, 0, 1, address, address)
    with refused("99 is not the number of an element type"):
        comm.submit(_native.ALL_REDUCE, 99, 0, 1, address, address)
    with refused("99 is not the number of an operation"):
        comm.submit(_native.ALL_REDUCE, 7, 99, 1, address, address)
    with refused("is null"):
        comm.submit(_native.ALL_REDUCE, 7, 0, 1, 0, address)
    with refused("begin at multiples of 4"):
        comm.submit(_native.ALL_REDUCE, 7, 0, 1, address + 1, address)
    with refused("more than memory can hold"):
        comm.submit(_native.ALL_REDUCE, 7, 0, 1 << 62, address, address)
    with refused("needs the counts of each block"):
        comm.submit(_native.ALL_TO_ALL_V, 7, 0, 1, address, address)
    with refused("needs recv_counts"):
        comm.submit(_native.ALL_TO_ALL_V, 7, 0, ([1, 1], None), address, address)
    with refused("-5 is not a rank"):
        comm.submit(_native.SEND, 7, 0, 1, address, 0, -5)
    with refused("", TypeError):
        comm.submit("all_reduce", 7, 0, 1, address, address)
    with refused("", OverflowError):
        comm.submit(_native.ALL_REDUCE, 7, 0, -1, address, address)
    with refused("length 7", ValueError):
        comm.submit_group([(1, 2)])
    with refused("", TypeError):
        _native.Communicator(3)
    with refused("", TypeError):
        _native.Memory(comm)
    with refused("can't be sent to another", TypeError):
        pickle.dumps(comm)


def main() -> None:
    with tbccl.init(timeout=60) as comm:
        arrays(comm)
        arguments(comm)
        raw(comm)
        assert comm.all_reduce(np.ones(1))[0] == comm.size
        error = tbccl.PeerDiedError("gone", code=1000, peer=3, host="mac0")
        copy = pickle.loads(pickle.dumps(error))
        assert (copy.peer, copy.host, copy.code) == (3, "mac0", 1000)
        assert (copy.cause, str(copy)) == ("peerdied", "gone")


main()
