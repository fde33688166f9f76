"""A barrier that says who has not come.

Rank 0 hears from every rank and answers all that have come: who is missing, or that nobody is. It is made of messages, not of a
collective, so that it also ends where some ranks are in no call at all.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.constants import default_pg_timeout

from tbccl import Error, TimeoutError

#: What rank 0 answers if nobody is missing.
_ALL_HERE = -1
#: How long a barrier waits that nobody has given a limit: as long as torch's.
_DEFAULT_SECONDS = default_pg_timeout.total_seconds()


class MonitoredBarrier:
    """The barrier."""

    #: How many there have been. A message of one that failed is not taken for one of the next.
    _monitored_barriers = 0

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Waits until all ranks are here.

        Raises tbccl.TimeoutError after ``timeout``; on rank 0 it names the first rank that is missing, or, with
        ``wait_all_ranks``, all of them.
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
        if limit <= 0:
            raise TimeoutError(f"[Rank 0]: Rank 0 timed out in monitoredBarrier after {limit * 1000:.0f} ms")
        deadline = time.monotonic() + limit
        reports = {rank: _RankMessage(self, tag).receive_from(rank) for rank in range(1, self._size)}
        missing = []
        for rank, report in reports.items():
            if not _has_arrived(report, deadline):
                missing.append(rank)
                if not wait_all_ranks:
                    break
        answer = missing[0] if missing else _ALL_HERE
        answers = [
            _RankMessage(self, tag, answer).send_to(rank)
            for rank, report in reports.items()
            if _has_arrived(report, 0.0)
        ]
        for message in answers:
            # As little as one message may be on its way to a rank that dies now, which is no matter of this barrier.
            _has_arrived(message, time.monotonic() + 1.0)
        if missing:
            names = f"Rank {missing[0]}" if len(missing) == 1 else f"Ranks {', '.join(map(str, missing))}"
            error = TimeoutError(
                f"[Rank 0]: {names} failed to pass monitoredBarrier in {limit * 1000:.0f} ms"
            )
            error.peer = missing[0]
            raise error

    def _report_to_rank_0(self, tag: int, limit: float) -> None:
        deadline = time.monotonic() + limit
        answer = _RankMessage(self, tag).receive_from(0)
        _RankMessage(self, tag, self._rank).send_to(0)
        reached = f"[Rank {self._rank}]: Rank {self._rank} successfully reached monitoredBarrier, but "
        if not answer.wait_until(deadline):
            raise TimeoutError(
                f"{reached}received errors while waiting for send/recv from rank 0: it has not answered within "
                f"{limit:g} s. Please check rank 0 logs for faulty rank."
            )
        if answer.value != _ALL_HERE:
            error = TimeoutError(
                f"{reached}received errors while waiting for send/recv from rank 0: rank {answer.value} failed to pass "
                "monitoredBarrier. Please check rank 0 logs for faulty rank."
            )
            error.peer = answer.value
            raise error


class _RankMessage:
    """A number on its way between two ranks."""

    def __init__(self, group: Any, tag: int, value: int = 0) -> None:
        self._group, self._tag = group, tag
        self._memory = torch.tensor([value], dtype=torch.int64)
        self._request: Any = None

    @property
    def value(self) -> int:
        return int(self._memory.item())

    def receive_from(self, rank: int) -> _RankMessage:
        return self._issue(self._group._p2p_comm.post_recv, rank)

    def send_to(self, rank: int) -> _RankMessage:
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
        """Has it come by then? What was to come from a rank that is gone never comes."""
        left = deadline - time.monotonic()
        return self._request.wait(left) if left > 0 else self._request.test()

    def is_finished(self) -> bool:
        """May its memory be used otherwise?"""
        try:
            return self._request.test()
        except Error:
            return True


def _has_arrived(message: _RankMessage, deadline: float) -> bool:
    try:
        return message.wait_until(deadline)
    except Error:
        return False
