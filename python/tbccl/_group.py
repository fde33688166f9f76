"""Groups of calls that progress together."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Sequence, TypeVar

from tbccl import _calls
from tbccl._calls import Call
from tbccl._errors import UsageError
from tbccl._work import FinishedRequest, Work

if TYPE_CHECKING:
    from tbccl._communicator import Communicator

A = TypeVar("A")


class Group:
    """Calls that are submitted together, as between ncclGroupStart and ncclGroupEnd.

    `Communicator.group` makes a group. Its methods record calls. The end of the `with` block submits them, as
    do `run` and `start`. Recorded calls progress at the same time, so their latencies overlap.

    All ranks record the same collectives in the same order. Messages (`send`, `recv`) may stand anywhere
    between them and differ from rank to rank. The sends and receives between two ranks are matched by their
    order, without tags. Results are valid only after the group is done.
    """

    def __init__(self, comm: Communicator, timeout: float | None = None) -> None:
        self._comm = comm
        self._timeout = timeout
        self._calls: list[Call] = []
        self._is_done = False

    @property
    def rank(self) -> int:
        """Rank of this process in the communicator."""
        return self._comm.rank

    @property
    def size(self) -> int:
        """Number of ranks of the communicator."""
        return self._comm.size

    def _take_calls(self) -> tuple[list[tuple[Any, ...]], list[Any]]:
        """Returns the arguments of `submit_group` and the objects that the calls need alive; once only."""
        if self._is_done:
            raise UsageError("the calls of this group were submitted already: begin another group", code=5)
        self._is_done = True
        return [call[:7] for call in self._calls], [call.keep for call in self._calls]

    def run(self) -> None:
        """Submits the recorded calls and waits until all are done.

        Raises:
            UsageError: The calls were submitted before.
            Error: A call failed, as `Communicator.all_reduce` describes.
        """
        calls, _ = self._take_calls()
        if calls:
            self._comm.submit_group(calls, self._timeout)

    def start(self) -> Work[None]:
        """Submits the recorded calls and returns at once.

        Returns:
            A `Work` that is done when all calls are done, at once if there are none. Its result is None; the
            arrays that the recording methods returned have the results.

        Raises:
            UsageError: The calls were submitted before.
        """
        calls, keep = self._take_calls()
        if not calls:
            # Other ranks may exchange messages in this group, so this one must not communicate.
            return Work(FinishedRequest(), None)
        return Work(self._comm.submit_group(calls, self._timeout, False, keep), None)

    def _add(self, call: Call) -> Any:
        """Records a call and returns the array for its result."""
        self._calls.append(call)
        return call.result

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None and not self._is_done:
            self.run()

    def all_reduce(self, data: A, op: str = "sum", *, out: A | None = None) -> A:
        """Records `Communicator.all_reduce`; returns the array that will hold the result."""
        return self._add(_calls.all_reduce(self, data, op, out))

    def all_reduce_quantized(
        self, data: A, codec: str = "int8", op: str = "sum", *, out: A | None = None
    ) -> A:
        """Records `Communicator.all_reduce_quantized`; returns the array that will hold the result."""
        return self._add(_calls.all_reduce_quantized(self, data, codec, op, out))

    def reduce(self, data: A, op: str = "sum", root: int = 0, *, out: A | None = None) -> A | None:
        """Records `Communicator.reduce`; returns the array that will hold the result, None unless this is the
        root.
        """
        return self._add(_calls.reduce(self, data, op, root, out))

    def broadcast(self, data: A, root: int = 0) -> A:
        """Records `Communicator.broadcast`; returns the array that will hold the result."""
        return self._add(_calls.broadcast(self, data, root))

    def all_gather(self, data: A, *, out: A | None = None) -> A:
        """Records `Communicator.all_gather`; returns the array that will hold the result."""
        return self._add(_calls.all_gather(self, data, out))

    def reduce_scatter(self, data: A, op: str = "sum", *, out: A | None = None) -> A:
        """Records `Communicator.reduce_scatter`; returns the array that will hold the result."""
        return self._add(_calls.reduce_scatter(self, data, op, out))

    def all_to_all(self, data: A, *, out: A | None = None) -> A:
        """Records `Communicator.all_to_all`; returns the array that will hold the result."""
        return self._add(_calls.all_to_all(self, data, out))

    def gather(self, data: A, root: int = 0, *, out: A | None = None) -> A | None:
        """Records `Communicator.gather`; returns the array that will hold the result, None unless this is the
        root.
        """
        return self._add(_calls.gather(self, data, root, out))

    def scatter(self, data: A | None, root: int = 0, *, out: A | None = None) -> A:
        """Records `Communicator.scatter`; returns the array that will hold the result."""
        return self._add(_calls.scatter(self, data, root, out))

    def scan(self, data: A, op: str = "sum", *, out: A | None = None) -> A:
        """Records `Communicator.scan`; returns the array that will hold the result."""
        return self._add(_calls.scan(self, data, op, out))

    def exclusive_scan(self, data: A, op: str = "sum", *, out: A | None = None) -> A:
        """Records `Communicator.exclusive_scan`; returns the array that will hold the result."""
        return self._add(_calls.exclusive_scan(self, data, op, out))

    def all_gather_v(self, data: A, lengths: Sequence[int], *, out: A | None = None) -> A:
        """Records `Communicator.all_gather_v`; returns the array that will hold the result."""
        return self._add(_calls.all_gather_v(self, data, lengths, out))

    def reduce_scatter_v(
        self, data: A, lengths: Sequence[int], op: str = "sum", *, out: A | None = None
    ) -> A:
        """Records `Communicator.reduce_scatter_v`; returns the array that will hold the result."""
        return self._add(_calls.reduce_scatter_v(self, data, lengths, op, out))

    def gather_v(self, data: A, lengths: Sequence[int], root: int = 0, *, out: A | None = None) -> A | None:
        """Records `Communicator.gather_v`; returns the array that will hold the result, None unless this is
        the root.
        """
        return self._add(_calls.gather_v(self, data, lengths, root, out))

    def scatter_v(self, data: A | None, lengths: Sequence[int], root: int = 0, *, out: A | None = None) -> A:
        """Records `Communicator.scatter_v`; returns the array that will hold the result."""
        return self._add(_calls.scatter_v(self, data, lengths, root, out))

    def all_to_all_v(
        self,
        data: A,
        send_lengths: Sequence[int],
        recv_lengths: Sequence[int],
        *,
        out: A | None = None,
    ) -> A:
        """Records `Communicator.all_to_all_v`; returns the array that will hold the result."""
        return self._add(_calls.all_to_all_v(self, data, send_lengths, recv_lengths, out))

    def send(self, data: Any, to: int) -> None:
        """Records a send of an array to rank `to`.

        The receiver records a `recv` of as many elements in a group of its own. The n-th send to a rank
        matches the n-th receive there.
        """
        return self._add(_calls.send(self, data, to))

    def recv(self, out: A, source: int) -> A:
        """Records a receive of an array of rank `source` into `out`, and returns `out`.

        Raises:
            InvalidArgumentError: `out` is not writable or not contiguous, or `source` is no rank.
        """
        return self._add(_calls.recv(self, out, source))
