"""A barrier that names the missing ranks.

Each rank reports to rank 0, which answers all that reported: with the first missing rank, or that none is
missing. The barrier uses messages, not a collective, so it also ends when some ranks make no call at all.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.constants import default_pg_timeout

from tbccl import Error, TimeoutError

#: Answer of rank 0 if no rank is missing.
_ALL_HERE = -1
#: Time limit of a barrier in seconds if none is set; torch's default.
_DEFAULT_SECONDS = default_pg_timeout.total_seconds()


class MonitoredBarrier:
    """Mixin of `ProcessGroup`: the monitored barrier."""

    #: Monitored barriers so far: the tag of the next one, so that it ignores messages of a failed barrier.
    _monitored_barriers = 0

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Waits until all ranks have called it.

        Args:
            timeout: Time limit; None: the group's, or torch's default.
            wait_all_ranks: Whether rank 0 names all missing ranks, not only the first.

        Raises:
            tbccl.TimeoutError: A rank did not come in time; on rank 0 the message names it.
        """
        limit = self._default_timeout or _DEFAULT_SECONDS if timeout is None else timeout.total_seconds()
        tag, self._monitored_barriers = self._monitored_barriers % 2**31, self._monitored_barriers + 1
        if self._size == 1:
            return
        try:
            if self._rank == 0:
                self._collect_reports(tag, limit, wait_all_ranks)
            else:
                self._report_to_rank_0(tag, limit)
        except Error as error:
            raise self._annotated(error)

    def _collect_reports(self, tag: int, limit: float, wait_all_ranks: bool) -> None:
        """Receives the reports of all ranks on rank 0 and answers those that arrived."""
        if limit <= 0:
            raise TimeoutError(f"[Rank 0]: Rank 0 timed out in monitoredBarrier after {limit * 1000:.0f} ms")
        deadline = time.monotonic() + limit
        reports = {rank: _RankMessage(self, tag).receive_from(rank) for rank in range(1, self._size)}
        missing = []
        for rank, report in reports.items():
            if not report.has_arrived(deadline):
                missing.append(rank)
                if not wait_all_ranks:
                    break
        answer = missing[0] if missing else _ALL_HERE
        answers = [
            _RankMessage(self, tag, answer).send_to(rank)
            for rank, report in reports.items()
            if report.has_arrived(0.0)
        ]
        for message in answers:
            # The answer may be in flight to a rank that dies now; the barrier does not report that.
            message.has_arrived(time.monotonic() + 1.0)
        if missing:
            names = f"Rank {missing[0]}" if len(missing) == 1 else f"Ranks {', '.join(map(str, missing))}"
            error = TimeoutError(
                f"[Rank 0]: {names} failed to pass monitoredBarrier in {limit * 1000:.0f} ms"
            )
            error.peer = missing[0]
            raise error

    def _report_to_rank_0(self, tag: int, limit: float) -> None:
        """Reports this rank to rank 0 and waits for its answer."""
        deadline = time.monotonic() + limit
        answer = _RankMessage(self, tag).receive_from(0)
        _RankMessage(self, tag, self._rank).send_to(0)
        reached = f"[Rank {self._rank}]: Rank {self._rank} successfully reached monitoredBarrier, but "
        if not answer.wait_until(deadline):
            raise TimeoutError(
                f"{reached}received errors while waiting for send/recv from rank 0: it did not answer "
                f"within {limit:g} s. Please check rank 0 logs for faulty rank."
            )
        if answer.value != _ALL_HERE:
            error = TimeoutError(
                f"{reached}received errors while waiting for send/recv from rank 0: rank {answer.value} "
                "failed to pass monitoredBarrier. Please check rank 0 logs for faulty rank."
            )
            error.peer = answer.value
            raise error


class _RankMessage:
    """Message with one number between two ranks."""

    def __init__(self, group: Any, tag: int, value: int = 0) -> None:
        self._group, self._tag = group, tag
        self._memory = torch.tensor([value], dtype=torch.int64, device="cpu")
        self._request: Any = None

    @property
    def value(self) -> int:
        """Number that was sent or received."""
        return int(self._memory.item())

    def receive_from(self, rank: int) -> _RankMessage:
        """Starts to receive the number from ``rank``."""
        return self._issue(self._group._p2p_comm.post_recv, rank)

    def send_to(self, rank: int) -> _RankMessage:
        """Starts to send the number to ``rank``."""
        return self._issue(self._group._p2p_comm.post_send, rank)

    def _issue(self, post: Any, rank: int) -> _RankMessage:
        group = self._group
        peer, context = group._p2p_ranks[rank], 2 * group._context + 1
        self._request = post(peer, context, self._tag, self._memory.data_ptr(), self._memory.nbytes)
        group._barrier_messages = [
            message for message in group._barrier_messages if not message.is_finished()
        ] + [self]
        return self

    def wait_until(self, deadline: float) -> bool:
        """Returns whether the message is done by ``deadline``. A message from a dead rank never is."""
        left = deadline - time.monotonic()
        return self._request.wait(left) if left > 0 else self._request.test()

    def is_finished(self) -> bool:
        """Returns whether the memory of the message is no longer in use."""
        try:
            return self._request.test()
        except Error as error:
            if not self._has_failed_with(error):
                raise
            return True

    def has_arrived(self, deadline: float) -> bool:
        """Returns whether the message is done without an error by ``deadline``."""
        try:
            return self.wait_until(deadline)
        except Error as error:
            if not self._has_failed_with(error):
                raise
            return False

    def _has_failed_with(self, error: Error) -> bool:
        """Returns whether the error is of the message, and not of a signal handler that ended the wait."""
        try:
            self._request.test()
        except Error as own:
            # A failed message raises the same error each time.
            return type(own) is type(error) and str(own) == str(error)
        return False
