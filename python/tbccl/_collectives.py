"""The calls of a communicator, each at once and later. `_calls` has what they need of their arguments."""

from __future__ import annotations

from typing import Any, Sequence, TypeVar

from tbccl import _calls
from tbccl._calls import Call
from tbccl._elements import view
from tbccl._work import Work

A = TypeVar("A")


class Collectives:
    """What a communicator does; its base class makes calls by address."""

    def _execute(self: Any, call: Call, timeout: float | None) -> Any:
        number, dtype, op, count, send, recv, root, _, result = call
        self.submit(number, dtype, op, count, send, recv, root, timeout)
        return result

    def _issue(self: Any, call: Call, timeout: float | None) -> Work[Any]:
        number, dtype, op, count, send, recv, root, keep, result = call
        request = self.submit(number, dtype, op, count, send, recv, root, timeout, None, False, keep)
        return Work(request, result)

    def all_reduce(
        self, data: A, op: str = "sum", *, out: A | None = None, timeout: float | None = None
    ) -> A:
        """Combines all ranks' arrays element by element, and gives every rank the result.

        Operations are "sum", "prod", "max", "min", "avg", "band", "bor" and "bxor".
        """
        return self._execute(_calls.all_reduce(self, data, op, out), timeout)

    def all_reduce_async(
        self,
        data: A,
        op: str = "sum",
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> Work[A]:
        """As `all_reduce`, at once: the result is the Work's."""
        return self._issue(_calls.all_reduce(self, data, op, out), timeout)

    def all_reduce_quantized(
        self,
        data: A,
        codec: str = "int8",
        op: str = "sum",
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> A:
        """As `all_reduce` of float32 whose messages travel packed, by "int8", "int8/64", "int8/256" or "bf16".

        The operation is "sum" or "avg". docs/collectives.md has the bound of the error.
        """
        return self._execute(_calls.all_reduce_quantized(self, data, codec, op, out), timeout)

    def all_reduce_quantized_async(
        self,
        data: A,
        codec: str = "int8",
        op: str = "sum",
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> Work[A]:
        """As `all_reduce_quantized`, at once: the result is the Work's."""
        return self._issue(_calls.all_reduce_quantized(self, data, codec, op, out), timeout)

    def reduce(
        self,
        data: A,
        op: str = "sum",
        root: int = 0,
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> A | None:
        """As `all_reduce`, for one rank: the root gets the result, the others None."""
        return self._execute(_calls.reduce(self, data, op, root, out), timeout)

    def reduce_async(
        self,
        data: A,
        op: str = "sum",
        root: int = 0,
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> Work[A | None]:
        """As `reduce`, at once: the result is the Work's."""
        return self._issue(_calls.reduce(self, data, op, root, out), timeout)

    def broadcast(self, data: A, root: int = 0, *, timeout: float | None = None) -> A:
        """Gives every rank the root's elements, in `data` itself, which is also returned."""
        return self._execute(_calls.broadcast(self, data, root), timeout)

    def broadcast_async(self, data: A, root: int = 0, *, timeout: float | None = None) -> Work[A]:
        """As `broadcast`, at once: the result is the Work's."""
        return self._issue(_calls.broadcast(self, data, root), timeout)

    def all_gather(self, data: A, *, out: A | None = None, timeout: float | None = None) -> A:
        """Gives every rank all ranks' arrays: the result has the ranks as its first dimension."""
        return self._execute(_calls.all_gather(self, data, out), timeout)

    def all_gather_async(self, data: A, *, out: A | None = None, timeout: float | None = None) -> Work[A]:
        """As `all_gather`, at once: the result is the Work's."""
        return self._issue(_calls.all_gather(self, data, out), timeout)

    def reduce_scatter(
        self, data: A, op: str = "sum", *, out: A | None = None, timeout: float | None = None
    ) -> A:
        """Combines all ranks' arrays, and gives each rank its part of the result, divided along the first dimension."""
        return self._execute(_calls.reduce_scatter(self, data, op, out), timeout)

    def reduce_scatter_async(
        self,
        data: A,
        op: str = "sum",
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> Work[A]:
        """As `reduce_scatter`, at once: the result is the Work's."""
        return self._issue(_calls.reduce_scatter(self, data, op, out), timeout)

    def all_to_all(self, data: A, *, out: A | None = None, timeout: float | None = None) -> A:
        """Gives each rank its part of every rank's array, divided along the first dimension; parts come in the order of
        ranks.
        """
        return self._execute(_calls.all_to_all(self, data, out), timeout)

    def all_to_all_async(self, data: A, *, out: A | None = None, timeout: float | None = None) -> Work[A]:
        """As `all_to_all`, at once: the result is the Work's."""
        return self._issue(_calls.all_to_all(self, data, out), timeout)

    def gather(
        self, data: A, root: int = 0, *, out: A | None = None, timeout: float | None = None
    ) -> A | None:
        """As `all_gather`, for one rank: the root gets the result, the others None."""
        return self._execute(_calls.gather(self, data, root, out), timeout)

    def gather_async(
        self,
        data: A,
        root: int = 0,
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> Work[A | None]:
        """As `gather`, at once: the result is the Work's."""
        return self._issue(_calls.gather(self, data, root, out), timeout)

    def scatter(
        self, data: A | None, root: int = 0, *, out: A | None = None, timeout: float | None = None
    ) -> A:
        """Gives each rank its entry of the root's array, whose first dimension is the ranks.

        Ranks that are not the root give `out`, and None as `data`.
        """
        return self._execute(_calls.scatter(self, data, root, out), timeout)

    def scatter_async(
        self,
        data: A | None,
        root: int = 0,
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> Work[A]:
        """As `scatter`, at once: the result is the Work's."""
        return self._issue(_calls.scatter(self, data, root, out), timeout)

    def scan(self, data: A, op: str = "sum", *, out: A | None = None, timeout: float | None = None) -> A:
        """Combines the arrays of all ranks up to this one, this one's included."""
        return self._execute(_calls.scan(self, data, op, out), timeout)

    def scan_async(
        self, data: A, op: str = "sum", *, out: A | None = None, timeout: float | None = None
    ) -> Work[A]:
        """As `scan`, at once: the result is the Work's."""
        return self._issue(_calls.scan(self, data, op, out), timeout)

    def exclusive_scan(
        self, data: A, op: str = "sum", *, out: A | None = None, timeout: float | None = None
    ) -> A:
        """Combines the arrays of all ranks before this one. docs/collectives.md says what rank 0 gets."""
        return self._execute(_calls.exclusive_scan(self, data, op, out), timeout)

    def exclusive_scan_async(
        self,
        data: A,
        op: str = "sum",
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> Work[A]:
        """As `exclusive_scan`, at once: the result is the Work's."""
        return self._issue(_calls.exclusive_scan(self, data, op, out), timeout)

    def all_gather_v(
        self,
        data: A,
        lengths: Sequence[int],
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> A:
        """As `all_gather` of arrays whose first dimensions differ: `lengths` has them for all ranks, and parts lie one
        after the other.
        """
        return self._execute(_calls.all_gather_v(self, data, lengths, out), timeout)

    def all_gather_v_async(
        self,
        data: A,
        lengths: Sequence[int],
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> Work[A]:
        """As `all_gather_v`, at once: the result is the Work's."""
        return self._issue(_calls.all_gather_v(self, data, lengths, out), timeout)

    def reduce_scatter_v(
        self,
        data: A,
        lengths: Sequence[int],
        op: str = "sum",
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> A:
        """As `reduce_scatter` in parts of different lengths along the first dimension, `lengths` for all ranks."""
        return self._execute(_calls.reduce_scatter_v(self, data, lengths, op, out), timeout)

    def reduce_scatter_v_async(
        self,
        data: A,
        lengths: Sequence[int],
        op: str = "sum",
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> Work[A]:
        """As `reduce_scatter_v`, at once: the result is the Work's."""
        return self._issue(_calls.reduce_scatter_v(self, data, lengths, op, out), timeout)

    def gather_v(
        self,
        data: A,
        lengths: Sequence[int],
        root: int = 0,
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> A | None:
        """As `gather` of arrays whose first dimensions differ: see `all_gather_v`."""
        return self._execute(_calls.gather_v(self, data, lengths, root, out), timeout)

    def gather_v_async(
        self,
        data: A,
        lengths: Sequence[int],
        root: int = 0,
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> Work[A | None]:
        """As `gather_v`, at once: the result is the Work's."""
        return self._issue(_calls.gather_v(self, data, lengths, root, out), timeout)

    def scatter_v(
        self,
        data: A | None,
        lengths: Sequence[int],
        root: int = 0,
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> A:
        """As `scatter` in parts of different lengths along the first dimension, `lengths` for all ranks."""
        return self._execute(_calls.scatter_v(self, data, lengths, root, out), timeout)

    def scatter_v_async(
        self,
        data: A | None,
        lengths: Sequence[int],
        root: int = 0,
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> Work[A]:
        """As `scatter_v`, at once: the result is the Work's."""
        return self._issue(_calls.scatter_v(self, data, lengths, root, out), timeout)

    def all_to_all_v(
        self,
        data: A,
        send_lengths: Sequence[int],
        recv_lengths: Sequence[int],
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> A:
        """As `all_to_all` in parts of different lengths: those that go to each rank, and those that come from each."""
        return self._execute(_calls.all_to_all_v(self, data, send_lengths, recv_lengths, out), timeout)

    def all_to_all_v_async(
        self,
        data: A,
        send_lengths: Sequence[int],
        recv_lengths: Sequence[int],
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> Work[A]:
        """As `all_to_all_v`, at once: the result is the Work's."""
        return self._issue(_calls.all_to_all_v(self, data, send_lengths, recv_lengths, out), timeout)

    def barrier(self, *, timeout: float | None = None) -> None:
        """Waits until all ranks have come so far."""
        return self._execute(_calls.barrier(self), timeout)

    def barrier_async(self, *, timeout: float | None = None) -> Work[None]:
        """As `barrier`, at once: the result is the Work's."""
        return self._issue(_calls.barrier(self), timeout)

    def send(self: Any, data: Any, to: int, tag: int = 0, *, timeout: float | None = None) -> None:
        """Sends an array to a rank. When this returns the array may be written again; that says nothing of who has received it.

        Messages have a length in bytes and a tag, which a receive looks for. Of those that a receive could take it takes the
        one that was sent first. Both ranks of a pair may send first.
        """
        self.send_async(data, to, tag).result(timeout)

    def send_async(self: Any, data: Any, to: int, tag: int = 0) -> Work[None]:
        """As `send`, at once."""
        elements = view(data)
        nbytes = elements.count * elements.itemsize
        peer = _calls.checked_rank(to, self.size, "peer")
        request = self.post_send(peer, 0, _calls.checked_tag(tag), elements.address, nbytes, (data, elements))
        return Work(request, None)

    def recv(
        self: Any,
        out: A,
        source: int | None = None,
        tag: int | None = None,
        *,
        timeout: float | None = None,
    ) -> A:
        """Receives a message in `out`, which is also returned: from a rank or from any, with a tag or with any.

        A message may be shorter than `out`, of which the rest stays as it is; one that is longer raises TruncatedError.
        `recv_async` tells who sent what.
        """
        return self.recv_async(out, source, tag).result(timeout)

    def recv_async(self: Any, out: A, source: int | None = None, tag: int | None = None) -> Work[A]:
        """As `recv`, at once. When it is done, the Work's `source`, `tag` and `nbytes` tell what has come."""
        elements = view(out, True)
        nbytes = elements.count * elements.itemsize
        peer = -1 if source is None else _calls.checked_rank(source, self.size, "source")
        wanted = -1 if tag is None else _calls.checked_tag(tag)
        return Work(self.post_recv(peer, 0, wanted, elements.address, nbytes, (out, elements)), out)

    def sendrecv(
        self: Any,
        data: Any,
        to: int,
        out: A,
        source: int | None = None,
        *,
        tag: int = 0,
        recv_tag: int | None = None,
        timeout: float | None = None,
    ) -> A:
        """Sends an array to one rank and receives one from another, at the same time."""
        received = self.recv_async(out, source, recv_tag)
        sent = self.send_async(data, to, tag)
        received.result(timeout)
        sent.result(timeout)
        return out
