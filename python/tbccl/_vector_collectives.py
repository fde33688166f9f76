"""Vector collectives: collectives of blocks of unequal lengths, blocking and asynchronous."""

from __future__ import annotations

from typing import Sequence, TypeVar

from tbccl import _calls
from tbccl._submission import Submission
from tbccl._work import Work

A = TypeVar("A")


class VectorCollectives(Submission):
    """Collectives of blocks of unequal lengths, on arrays."""

    def all_gather_v(
        self,
        data: A,
        lengths: Sequence[int],
        *,
        out: A | None = None,
        timeout: float | None = None,
    ) -> A:
        """Gathers arrays of different lengths from all ranks on every rank.

        Args:
            data: Array of this rank, whose first dimension is `lengths[rank]`. The other dimensions are the
                same on all ranks.
            lengths: First dimension of each rank's array, the same list on all ranks.
            out: Array for the result; None: a new array.
            timeout: As in `all_reduce`.

        Returns:
            `out`, or a new array of shape (sum(lengths), *data.shape[1:]), with the arrays in the order of
            ranks.

        Raises:
            Error: As in `all_reduce`.
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
        """Starts `all_gather_v` with the same arguments and returns a `Work` with its result."""
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
        """Reduces arrays over all ranks; rank `i` gets a block of `lengths[i]` entries.

        Args:
            data: Array whose first dimension is sum(lengths).
            lengths: Length of each rank's block along the first dimension, the same list on all ranks.
            op: As in `all_reduce`.
            out: Array for the block; None: a new array.
            timeout: As in `all_reduce`.

        Returns:
            `out`, or a new array of shape (lengths[rank], *data.shape[1:]).

        Raises:
            Error: As in `all_reduce`.
        """
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
        """Starts `reduce_scatter_v` with the same arguments and returns a `Work` with its result."""
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
        """Gathers arrays of different lengths from all ranks at the root.

        Args:
            data: As in `all_gather_v`.
            lengths: As in `all_gather_v`.
            root: Rank that gets the result.
            out: As in `all_gather_v`, at the root; ignored on the other ranks.
            timeout: As in `all_reduce`.

        Returns:
            At the root `out`, or a new array of shape (sum(lengths), *data.shape[1:]); None on the other
            ranks.

        Raises:
            Error: As in `all_reduce`.
        """
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
        """Starts `gather_v` with the same arguments and returns a `Work` with its result."""
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
        """Sends a block of `lengths[i]` entries of the root's array to rank `i`.

        Args:
            data: At the root, an array whose first dimension is sum(lengths); None on the other ranks.
            lengths: Length of each rank's block along the first dimension, the same list on all ranks.
            root: Rank that has the data.
            out: Array for the block; required on ranks other than the root, which do not know the shape.
            timeout: As in `all_reduce`.

        Returns:
            `out`, or at the root a new array of shape (lengths[root], *data.shape[1:]).

        Raises:
            Error: As in `all_reduce`.
        """
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
        """Starts `scatter_v` with the same arguments and returns a `Work` with its result."""
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
        """Sends blocks of different lengths from every rank to every rank.

        Args:
            data: Array whose first dimension is sum(send_lengths); blocks lie in the order of their
                destinations.
            send_lengths: Length of the block for each rank, along the first dimension.
            recv_lengths: Length of the block from each rank, along the first dimension.
            out: Array for the result; None: a new array.
            timeout: As in `all_reduce`.

        Returns:
            `out`, or a new array of shape (sum(recv_lengths), *data.shape[1:]), with blocks in the order of
            their sources.

        Raises:
            MismatchError: A rank sends a block of another length than the receiver expects.
            Error: As in `all_reduce`.
        """
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
        """Starts `all_to_all_v` with the same arguments and returns a `Work` with its result."""
        return self._issue(_calls.all_to_all_v(self, data, send_lengths, recv_lengths, out), timeout)
