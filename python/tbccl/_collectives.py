"""Collectives of equal blocks, blocking and asynchronous; `_vector_collectives` has those of unequal ones."""

from __future__ import annotations

from typing import TypeVar

from tbccl import _calls
from tbccl._submission import Submission
from tbccl._work import Work

A = TypeVar("A")


class Collectives(Submission):
    """Collectives of equal blocks, on arrays."""

    def all_reduce(
        self, data: A, op: str = "sum", *, out: A | None = None, timeout: float | None = None
    ) -> A:
        """Reduces arrays element-wise over all ranks; every rank gets the result.

        All ranks pass the same number of elements, element type and operation.

        Args:
            data: Array to reduce, of any shape. It is not changed unless it is `out`.
            op: "sum", "prod", "max", "min", "avg", "band", "bor" or "bxor".
            out: Array for the result, with the element type and number of elements of `data`; `data` itself
                for a call in place. None: a new array of the same library and shape.
            timeout: Seconds that the call may wait without progress; None: the communicator's limit.

        Returns:
            `out`, or the new array, with the shape of `data`.

        Raises:
            InvalidArgumentError: An array is not contiguous, not writable, not in host memory or of the wrong
                length or type.
            IllegalOperationError: The element type does not support `op`.
            MismatchError: Ranks disagree on the call, its length, element type or operation.
            TimeoutError: The call made no progress for `timeout` seconds.
            PeerDiedError: The process of another rank ended.
            PeerLeftError: Another rank closed the communicator without taking part.
            RemoteError: Another rank failed or aborted the communicator.
            AbortedError: This rank aborted the communicator.
            TransportError: A link failed.
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
        """Starts `all_reduce` with the same arguments and returns a `Work` with its result."""
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
        """Reduces float32 arrays over all ranks with messages that travel packed.

        All ranks get the same bits. docs/collectives.md has the bound on the error. It pays where links are
        slower than memory.

        Args:
            data: float32 array to reduce.
            codec: "int8" (a scale for every 128 elements), "int8/64", "int8/256" or "bf16".
            op: "sum" or "avg".
            out: As in `all_reduce`.
            timeout: As in `all_reduce`.

        Returns:
            `out`, or the new array, with the shape of `data`.

        Raises:
            InvalidArgumentError: As in `all_reduce`; also an unknown codec or another element type or
                operation.
            Error: As in `all_reduce`.
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
        """Starts `all_reduce_quantized` with the same arguments and returns a `Work` with its result."""
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
        """Reduces arrays element-wise over all ranks; the root gets the result.

        Args:
            data: As in `all_reduce`.
            op: As in `all_reduce`.
            root: Rank that gets the result.
            out: Array for the result at the root, as in `all_reduce`; ignored on the other ranks.
            timeout: As in `all_reduce`.

        Returns:
            `out`, or the new array, at the root; None on the other ranks.

        Raises:
            Error: As in `all_reduce`.
        """
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
        """Starts `reduce` with the same arguments and returns a `Work` with its result."""
        return self._issue(_calls.reduce(self, data, op, root, out), timeout)

    def broadcast(self, data: A, root: int = 0, *, timeout: float | None = None) -> A:
        """Copies the root's elements to every rank, in place.

        Args:
            data: Array with the elements at the root, and for them on the other ranks; of one length and type
                on all ranks.
            root: Rank whose elements are sent.
            timeout: As in `all_reduce`.

        Returns:
            `data`.

        Raises:
            Error: As in `all_reduce`.
        """
        return self._execute(_calls.broadcast(self, data, root), timeout)

    def broadcast_async(self, data: A, root: int = 0, *, timeout: float | None = None) -> Work[A]:
        """Starts `broadcast` with the same arguments and returns a `Work` with its result."""
        return self._issue(_calls.broadcast(self, data, root), timeout)

    def all_gather(self, data: A, *, out: A | None = None, timeout: float | None = None) -> A:
        """Gathers the arrays of all ranks on every rank.

        Args:
            data: Array of this rank, of one length and type on all ranks.
            out: Array for the result, with `size` times the elements of `data`; None: a new array.
            timeout: As in `all_reduce`.

        Returns:
            `out`, or a new array of shape (size, *data.shape). Entry `i` is the array of rank `i`.

        Raises:
            Error: As in `all_reduce`.
        """
        return self._execute(_calls.all_gather(self, data, out), timeout)

    def all_gather_async(self, data: A, *, out: A | None = None, timeout: float | None = None) -> Work[A]:
        """Starts `all_gather` with the same arguments and returns a `Work` with its result."""
        return self._issue(_calls.all_gather(self, data, out), timeout)

    def reduce_scatter(
        self, data: A, op: str = "sum", *, out: A | None = None, timeout: float | None = None
    ) -> A:
        """Reduces arrays over all ranks; each rank gets its block of the result.

        Args:
            data: Array whose first dimension is a multiple of `size`; block `i` along it is for rank `i`.
            op: As in `all_reduce`.
            out: Array for the block, with 1/`size` of the elements of `data`; None: a new array.
            timeout: As in `all_reduce`.

        Returns:
            `out`, or a new array of shape (data.shape[0] / size, *data.shape[1:]).

        Raises:
            Error: As in `all_reduce`.
        """
        return self._execute(_calls.reduce_scatter(self, data, op, out), timeout)

    def reduce_scatter_async(
        self,
        data: A,
        op: str = "sum",
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> Work[A]:
        """Starts `reduce_scatter` with the same arguments and returns a `Work` with its result."""
        return self._issue(_calls.reduce_scatter(self, data, op, out), timeout)

    def all_to_all(self, data: A, *, out: A | None = None, timeout: float | None = None) -> A:
        """Sends block `j` of each rank's array to rank `j`.

        Args:
            data: Array whose first dimension is a multiple of `size`; block `j` along it is for rank `j`.
            out: Array for the result, with the elements of `data`; None: a new array.
            timeout: As in `all_reduce`.

        Returns:
            `out`, or a new array of the shape of `data`. Block `i` is from rank `i`.

        Raises:
            Error: As in `all_reduce`.
        """
        return self._execute(_calls.all_to_all(self, data, out), timeout)

    def all_to_all_async(self, data: A, *, out: A | None = None, timeout: float | None = None) -> Work[A]:
        """Starts `all_to_all` with the same arguments and returns a `Work` with its result."""
        return self._issue(_calls.all_to_all(self, data, out), timeout)

    def gather(
        self, data: A, root: int = 0, *, out: A | None = None, timeout: float | None = None
    ) -> A | None:
        """Gathers the arrays of all ranks at the root.

        Args:
            data: Array of this rank, of one length and type on all ranks.
            root: Rank that gets the result.
            out: As in `all_gather`, at the root; ignored on the other ranks.
            timeout: As in `all_reduce`.

        Returns:
            At the root `out`, or a new array of shape (size, *data.shape); None on the other ranks.

        Raises:
            Error: As in `all_reduce`.
        """
        return self._execute(_calls.gather(self, data, root, out), timeout)

    def gather_async(
        self,
        data: A,
        root: int = 0,
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> Work[A | None]:
        """Starts `gather` with the same arguments and returns a `Work` with its result."""
        return self._issue(_calls.gather(self, data, root, out), timeout)

    def scatter(
        self, data: A | None, root: int = 0, *, out: A | None = None, timeout: float | None = None
    ) -> A:
        """Sends entry `i` of the root's array to rank `i`.

        Args:
            data: At the root, an array with the ranks as its first dimension; None on the other ranks.
            root: Rank that has the data.
            out: Array for the entry; required on ranks other than the root, which do not know the shape.
            timeout: As in `all_reduce`.

        Returns:
            `out`, or at the root a new array of shape data.shape[1:].

        Raises:
            Error: As in `all_reduce`.
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
        """Starts `scatter` with the same arguments and returns a `Work` with its result."""
        return self._issue(_calls.scatter(self, data, root, out), timeout)

    def scan(self, data: A, op: str = "sum", *, out: A | None = None, timeout: float | None = None) -> A:
        """Reduces the arrays of ranks 0 to this one, this one included (inclusive prefix reduction).

        Args:
            data: As in `all_reduce`.
            op: As in `all_reduce`, except "avg".
            out: As in `all_reduce`.
            timeout: As in `all_reduce`.

        Returns:
            `out`, or a new array, with the shape of `data`.

        Raises:
            Error: As in `all_reduce`.
        """
        return self._execute(_calls.scan(self, data, op, out), timeout)

    def scan_async(
        self, data: A, op: str = "sum", *, out: A | None = None, timeout: float | None = None
    ) -> Work[A]:
        """Starts `scan` with the same arguments and returns a `Work` with its result."""
        return self._issue(_calls.scan(self, data, op, out), timeout)

    def exclusive_scan(
        self, data: A, op: str = "sum", *, out: A | None = None, timeout: float | None = None
    ) -> A:
        """Reduces the arrays of the ranks before this one (exclusive prefix reduction).

        Args:
            data: As in `all_reduce`.
            op: As in `all_reduce`, except "avg".
            out: As in `all_reduce`.
            timeout: As in `all_reduce`.

        Returns:
            `out`, or a new array, with the shape of `data`. On rank 0 the call does not write to it.

        Raises:
            Error: As in `all_reduce`.
        """
        return self._execute(_calls.exclusive_scan(self, data, op, out), timeout)

    def exclusive_scan_async(
        self,
        data: A,
        op: str = "sum",
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> Work[A]:
        """Starts `exclusive_scan` with the same arguments and returns a `Work` with its result."""
        return self._issue(_calls.exclusive_scan(self, data, op, out), timeout)

    def barrier(self, *, timeout: float | None = None) -> None:
        """Waits until all ranks have called it.

        Args:
            timeout: As in `all_reduce`.

        Raises:
            Error: As in `all_reduce`.
        """
        return self._execute(_calls.barrier(self), timeout)

    def barrier_async(self, *, timeout: float | None = None) -> Work[None]:
        """Starts `barrier` and returns a `Work` that is done when all ranks have called it."""
        return self._issue(_calls.barrier(self), timeout)
