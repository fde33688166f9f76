"""Communicators: a group of ranks, as one of them. The calls that they make are in `_collectives`."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Mapping, Sequence

from tbccl import _native
from tbccl._array import Array
from tbccl._collectives import Collectives
from tbccl._elements import dtype_number
from tbccl._errors import InvalidArgumentError
from tbccl._group import Group


def _option_strings(options: Mapping[str, object] | None) -> dict[str, str] | None:
    """Options as the environment has them: text."""
    return None if options is None else {name: str(value) for name, value in options.items()}


class Communicator(_native.Communicator, Collectives):
    """One rank of a group of ranks, which all make the same calls in the same order.

    Made by `tbccl.init()` or `Communicator.from_unique_id()`. As a context manager it is closed at the end, and aborted if an
    exception leaves the block, so that the other ranks hear of it.

    An array is whatever has the buffer protocol or DLPack: of numpy, torch, mlx; a memoryview, a bytearray, `tbccl.empty()`.
    Its elements lie side by side in the processor's memory. Nothing is copied on the way in or out. Calls give a new
    array of the same library, or fill `out`; in place is `out=data`.

    Every call has a form whose name ends in `_async`, which returns a `Work` at once. Calls may be made from several threads;
    they are carried out in the order in which they were issued. A call waits without Python's lock. Ctrl-C in a call
    raises KeyboardInterrupt, and aborts the communicator: this rank will not do its part.
    """

    #: Is it the one that a launcher has started this process for?
    is_of_launcher = False

    @classmethod
    def from_unique_id(
        cls,
        uid: bytes,
        rank: int,
        size: int,
        *,
        timeout: float | None = None,
        options: Mapping[str, object] | None = None,
        mail: bool = True,
    ) -> Communicator:
        """Joins the job of a unique id as one of `size` ranks, and waits for the others.

        All give the same id, which one of them has made with `tbccl.unique_id()`. `timeout` is how many seconds ranks wait for
        each other, and calls without progress; `options` are those of `tbccl run --help` by name, as {"ALGO": "ring"}.
        """
        return cls(_native.join(bytes(uid), rank, size, timeout, _option_strings(options), mail))

    def with_options(
        self,
        *,
        timeout: float | None = None,
        algorithm: str | None = None,
        segments: int | None = None,
        numerics: str | None = None,
    ) -> Communicator:
        """The same communicator, whose calls have these options when they are made with the object that is returned.

        But for the time limit all ranks give the same. `algorithm` is "ring", or the first of "ring,mesh" that can do a
        call, or none of those in "^ring,mesh"; `numerics` is "fast" or "reproducible".
        """
        return type(self)(self._with_options(timeout, algorithm, segments, numerics))

    def split(
        self,
        color: int | None,
        key: int = 0,
        *,
        timeout: float | None = None,
        options: Mapping[str, object] | None = None,
        mail: bool = True,
    ) -> Communicator | None:
        """Makes new communicators of this one: of all ranks of a color each, in the order of their keys.

        All ranks call it. Those whose color is None get None.
        """
        made = _native.split(self, color, key, timeout, _option_strings(options), mail)
        return None if made is None else type(self)(made)

    def shrink(
        self,
        without: Sequence[int],
        *,
        timeout: float | None = None,
        options: Mapping[str, object] | None = None,
        mail: bool = True,
    ) -> Communicator:
        """Makes a communicator of all ranks but these, which may be lost. The others call it with the same list; also when
        this communicator has failed or was aborted."""
        return type(self)(_native.shrink(self, list(without), timeout, _option_strings(options), mail))

    def grow(
        self,
        uid: bytes | None,
        size: int,
        *,
        timeout: float | None = None,
        options: Mapping[str, object] | None = None,
        mail: bool = True,
    ) -> Communicator:
        """Makes a communicator of these ranks, which keep their numbers, and of new ones, up to a size.

        All ranks call it, one of them with an id of `grow_id()`. The new ones join by `from_unique_id` with that id.
        """
        return type(self)(_native.grow(self, uid, size, timeout, _option_strings(options), mail))

    def grow_id(self) -> bytes:
        """Makes an id with which this communicator grows once."""
        return bytes(_native.grow_id(self))

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> Array:
        """An array in registered memory, zero when new, which the transport moves without copying it anywhere."""
        lengths = [shape] if isinstance(shape, int) else [int(length) for length in shape]
        if any(length < 0 for length in lengths):
            raise InvalidArgumentError(f"there can't be memory for a shape of {lengths}", code=4)
        return Array(self, dtype_number(dtype), lengths)

    def group(self, *, timeout: float | None = None) -> Group:
        """A group of calls, which progress together: `with comm.group() as g: g.send(...); g.recv(...)`."""
        return Group(self, timeout)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abort()
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a communicator belongs to its process and can't be sent to another one: send its unique id"
        )

    def __repr__(self) -> str:
        return f"<tbccl.Communicator: rank {self.rank} of {self.size}>"
