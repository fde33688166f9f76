"""Groups: calls that are made together."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Sequence, TypeVar

from tbccl import _calls
from tbccl._calls import Call
from tbccl._errors import UsageError
from tbccl._work import Work

if TYPE_CHECKING:
    from tbccl._communicator import Communicator

A = TypeVar("A")


class Group:
    """Calls that are made together, at the end of the `with` block or by `run()` or `start()`.

    Each rank may have calls of its own here as far as messages go: sends and receives between the same pair of ranks belong
    together in the order in which they come. Results are there when the group is done, and not before.
    """

    def __init__(self, comm: Communicator, timeout: float | None = None) -> None:
        self._comm = comm
        self._timeout = timeout
        self._calls: list[Call] = []
        self._is_done = False

    @property
    def rank(self) -> int:
        """This rank."""
        return self._comm.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._comm.size

    def _take_calls(self) -> tuple[list[tuple[Any, ...]], list[Any]]:
        if self._is_done:
            raise UsageError("the calls of this group have been made: begin another group", code=5)
        self._is_done = True
        return [call[:7] for call in self._calls], [call.keep for call in self._calls]

    def run(self) -> None:
        """Makes the calls, and waits until they are done."""
        calls, _ = self._take_calls()
        if calls:
            self._comm.submit_group(calls, self._timeout)

    def start(self) -> Work[None]:
        """Has the calls made, and returns at once."""
        calls, keep = self._take_calls()
        if not calls:
            # A group of nothing is done, but has a request like all others.
            calls = [_calls.barrier(self._comm)[:7]]
        return Work(self._comm.submit_group(calls, self._timeout, False, keep), None)

    def _add(self, call: Call) -> Any:
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
        """As `Communicator.all_reduce`, when the group is made."""
        return self._add(_calls.all_reduce(self, data, op, out))

    def all_reduce_quantized(
        self, data: A, codec: str = "int8", op: str = "sum", *, out: A | None = None
    ) -> A:
        """As `Communicator.all_reduce_quantized`, when the group is made."""
        return self._add(_calls.all_reduce_quantized(self, data, codec, op, out))

    def reduce(self, data: A, op: str = "sum", root: int = 0, *, out: A | None = None) -> A | None:
        """As `Communicator.reduce`, when the group is made."""
        return self._add(_calls.reduce(self, data, op, root, out))

    def broadcast(self, data: A, root: int = 0) -> A:
        """As `Communicator.broadcast`, when the group is made."""
        return self._add(_calls.broadcast(self, data, root))

    def all_gather(self, data: A, *, out: A | None = None) -> A:
        """As `Communicator.all_gather`, when the group is made."""
        return self._add(_calls.all_gather(self, data, out))

    def reduce_scatter(self, data: A, op: str = "sum", *, out: A | None = None) -> A:
        """As `Communicator.reduce_scatter`, when the group is made."""
        return self._add(_calls.reduce_scatter(self, data, op, out))

    def all_to_all(self, data: A, *, out: A | None = None) -> A:
        """As `Communicator.all_to_all`, when the group is made."""
        return self._add(_calls.all_to_all(self, data, out))

    def gather(self, data: A, root: int = 0, *, out: A | None = None) -> A | None:
        """As `Communicator.gather`, when the group is made."""
        return self._add(_calls.gather(self, data, root, out))

    def scatter(self, data: A | None, root: int = 0, *, out: A | None = None) -> A:
        """As `Communicator.scatter`, when the group is made."""
        return self._add(_calls.scatter(self, data, root, out))

    def scan(self, data: A, op: str = "sum", *, out: A | None = None) -> A:
        """As `Communicator.scan`, when the group is made."""
        return self._add(_calls.scan(self, data, op, out))

    def exclusive_scan(self, data: A, op: str = "sum", *, out: A | None = None) -> A:
        """As `Communicator.exclusive_scan`, when the group is made."""
        return self._add(_calls.exclusive_scan(self, data, op, out))

    def all_gather_v(self, data: A, lengths: Sequence[int], *, out: A | None = None) -> A:
        """As `Communicator.all_gather_v`, when the group is made."""
        return self._add(_calls.all_gather_v(self, data, lengths, out))

    def reduce_scatter_v(
        self, data: A, lengths: Sequence[int], op: str = "sum", *, out: A | None = None
    ) -> A:
        """As `Communicator.reduce_scatter_v`, when the group is made."""
        return self._add(_calls.reduce_scatter_v(self, data, lengths, op, out))

    def gather_v(self, data: A, lengths: Sequence[int], root: int = 0, *, out: A | None = None) -> A | None:
        """As `Communicator.gather_v`, when the group is made."""
        return self._add(_calls.gather_v(self, data, lengths, root, out))

    def scatter_v(self, data: A | None, lengths: Sequence[int], root: int = 0, *, out: A | None = None) -> A:
        """As `Communicator.scatter_v`, when the group is made."""
        return self._add(_calls.scatter_v(self, data, lengths, root, out))

    def all_to_all_v(
        self,
        data: A,
        send_lengths: Sequence[int],
        recv_lengths: Sequence[int],
        *,
        out: A | None = None,
    ) -> A:
        """As `Communicator.all_to_all_v`, when the group is made."""
        return self._add(_calls.all_to_all_v(self, data, send_lengths, recv_lengths, out))

    def send(self, data: Any, to: int) -> None:
        """Sends an array to a rank, whose group, or whose next receive in a group, receives as many elements."""
        return self._add(_calls.send(self, data, to))

    def recv(self, out: A, source: int) -> A:
        """Receives an array from a rank, in `out`: what a group of that rank sends."""
        return self._add(_calls.recv(self, out, source))
