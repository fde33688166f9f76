"""The communicator: one rank of a group of ranks.

The collectives are in `_collectives` and `_vector_collectives`, the messages in `_messages`, and the
extension module's calls by address in `_native`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Mapping, Sequence

from tbccl import _log, _native
from tbccl._array import Array
from tbccl._collectives import Collectives
from tbccl._elements import dtype_number
from tbccl._errors import InvalidArgumentError
from tbccl._group import Group
from tbccl._messages import Messages
from tbccl._vector_collectives import VectorCollectives


def _option_strings(options: Mapping[str, object] | None) -> dict[str, str] | None:
    """Returns options with their values as text, as the environment has them."""
    return None if options is None else {name: str(value) for name, value in options.items()}


class Communicator(_native.Communicator, Collectives, VectorCollectives, Messages):
    """One rank of a group of ranks that make the same calls in the same order, as ncclComm_t is.

    `tbccl.init` and `Communicator.from_unique_id` make communicators. Used as a context manager, the
    communicator is closed at the end of the block. An exception that leaves the block aborts it, so that the
    other ranks get an error instead of a hang.

    Arrays: Each call takes any object with the buffer protocol or DLPack: numpy, torch and MLX arrays,
    memoryview, bytearray, `tbccl.empty`. The elements must be contiguous in host memory. Nothing is copied on
    the way in or out. Results are new arrays of the same library, or `out`; `out=data` is a call in place.

    Asynchronous calls: Each call has a form whose name ends in `_async`, which returns a `Work` at once.
    Calls of several threads are carried out in the order in which they were issued. Calls wait without
    Python's global interpreter lock. Ctrl-C during a call raises KeyboardInterrupt and aborts the
    communicator, since this rank can no longer do its part.

    Signal handlers: Python runs them on its main thread, also while that thread waits in a call, which goes
    on when the handler has returned. `close` then aborts the communicator of that call. Other methods that
    would wait for an interrupted blocking call raise UsageError: blocking calls, `Work.wait` of collectives,
    `split`, `shrink`, `grow`, `grow_id` and `empty`. Messages, `_async` forms, queries and other
    communicators work as ever.

    Errors: Every call raises a subclass of `tbccl.Error` when it fails. An invalid argument
    (InvalidArgumentError) leaves the communicator usable. Any other failure of a collective ends the
    communicator on all ranks: later calls raise as well.
    """

    #: Whether `tbccl.init` made the communicator from a launcher's environment variables.
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
        """Joins the job of a unique id as one of `size` ranks and waits for the others.

        Args:
            uid: Id of the job, which one of the ranks made with `tbccl.unique_id`.
            rank: Rank of this process, 0 to `size` - 1.
            size: Number of ranks.
            timeout: Seconds that ranks wait for each other here, and that a later call may wait without
                progress; None: `TBCCL_TIMEOUT`, or 30.
            options: Options of tbccl by name, with or without `TBCCL_`, as {"ALGO": "ring"}; `tbccl run
                --help` lists them. They override the environment.
            mail: Whether the communicator can exchange tagged messages (`send`, `recv`), which use links of
                their own. All ranks pass the same.

        Raises:
            InvalidArgumentError: `uid` is no unique id, or `rank` is not below `size`.
            UnknownNameError: An option has an unknown name or value.
            BootstrapError: Some ranks did not join within `timeout`; the message names them.
            TransportError: A link to another rank cannot be set up.
        """
        _log.connect()
        return cls(_native.join(bytes(uid), rank, size, timeout, _option_strings(options), mail))

    @classmethod
    def _from_channel(
        cls,
        uid: bytes,
        rank: int,
        size: int,
        timeout: float | None,
        options: Mapping[str, object] | None,
        mail: bool,
    ) -> Communicator:
        """Joins the job of an id that came over a channel which others can read and write.

        Where the ranks have `TBCCL_SECRET` in common, such an id (``_native.unique_id(True)``) is of no use
        without it.
        """
        _log.connect()
        return cls(_native.join(bytes(uid), rank, size, timeout, _option_strings(options), mail, True))

    def with_options(
        self,
        *,
        timeout: float | None = None,
        algorithm: str | None = None,
        segments: int | None = None,
        numerics: str | None = None,
    ) -> Communicator:
        """Returns a handle of the same communicator whose calls use these options.

        All ranks pass the same options, except for `timeout`. None keeps the present setting.

        Args:
            timeout: Seconds that a call may wait without progress.
            algorithm: "ring" for one algorithm; "ring,mesh" for the first that can do a call; "^ring,mesh"
                for any but these.
            segments: Segments that an algorithm cuts its chunks into.
            numerics: "fast", or "reproducible" for bits that do not depend on the algorithm.

        Raises:
            UnknownNameError: An algorithm or `numerics` has an unknown name.
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
        """Makes one new communicator for each color, of the ranks that pass the color.

        All ranks call it, as MPI_Comm_split.

        Args:
            color: Number of the new communicator, 0 or more; None to join none.
            key: Position of this rank in the new communicator: ranks are ordered by key.
            timeout: As in `tbccl.init`.
            options: As in `tbccl.init`.
            mail: As in `tbccl.init`.

        Returns:
            The new communicator; None where `color` is None.

        Raises:
            InvalidArgumentError: `color` is negative.
            TransportError: A link to another rank cannot be set up.
        """
        handle = _native.split(self, color, key, timeout, _option_strings(options), mail)
        return None if handle is None else type(self)(handle)

    def shrink(
        self,
        without: Sequence[int],
        *,
        timeout: float | None = None,
        options: Mapping[str, object] | None = None,
        mail: bool = True,
    ) -> Communicator:
        """Makes a new communicator of all ranks except those in `without`, as ncclCommShrink.

        The remaining ranks call it with the same list. The listed ranks may be dead. It works also after this
        communicator failed or was aborted.

        Args:
            without: Ranks to leave out.
            timeout: As in `tbccl.init`.
            options: As in `tbccl.init`.
            mail: As in `tbccl.init`.

        Raises:
            InvalidArgumentError: `without` is not a valid list of other ranks.
            BootstrapError: A remaining rank did not call `shrink` within `timeout`.
        """
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
        """Makes a new communicator of these ranks, which keep their numbers, and of new ranks.

        All ranks call it. The new processes join with `Communicator.from_unique_id` and the same id and size.

        Args:
            uid: Id of `grow_id` on one rank, None on the others.
            size: Number of ranks of the new communicator.
            timeout: As in `tbccl.init`.
            options: As in `tbccl.init`.
            mail: As in `tbccl.init`.

        Raises:
            BootstrapError: A rank did not join within `timeout`; the message names it.
        """
        return type(self)(_native.grow(self, uid, size, timeout, _option_strings(options), mail))

    def grow_id(self) -> bytes:
        """Makes the unique id for one `grow` of this communicator.

        Call it on one rank and pass the id to the new processes.
        """
        return bytes(_native.grow_id(self))

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> Array:
        """Returns an array in registered memory, zero when new.

        The transport, peers and devices read and write registered memory in place, without a copy.

        Args:
            shape: Number of elements, or the length of each dimension.
            dtype: Element type by name ("float32", "bf16"), or as numpy, torch or MLX has it.

        Raises:
            InvalidArgumentError: The shape has a negative length or exceeds the memory, or tbccl lacks the
                element type.
        """
        lengths = [shape] if isinstance(shape, int) else [int(length) for length in shape]
        if any(length < 0 for length in lengths):
            raise InvalidArgumentError(
                f"there can't be memory for a shape of {lengths}: lengths are 0 or more", code=4
            )
        return Array(self, dtype_number(dtype), lengths)

    def group(self, *, timeout: float | None = None) -> Group:
        """Returns a group that submits calls together, so that they progress at the same time.

            with comm.group() as group:
                group.send(x, (comm.rank + 1) % comm.size)
                group.recv(y, (comm.rank - 1) % comm.size)

        Args:
            timeout: Seconds that the group may wait without progress; None: the communicator's limit.
        """
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
