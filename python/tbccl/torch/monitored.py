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


class Monitored:
    """The barrier."""

    #: How many there have been. A message of one that failed is not taken for one of the next.
    _monitored = 0

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Waits until all ranks are here.

        Raises tbccl.TimeoutError after ``timeout``; on rank 0 it names the first rank that is missing, or, with
        ``wait_all_ranks``, all of them.
        """
        limit = self._limit_set or _DEFAULT_SECONDS if timeout is None else timeout.total_seconds()
        tag, self._monitored = self._monitored % 2**31, self._monitored + 1
        if self._size == 1:
            return
        try:
            if self._rank == 0:
                self._hear_from_all(tag, limit, wait_all_ranks)
            else:
                self._report_to_first(tag, limit)
        except Error as error:
            raise self._told(error)

    def _hear_from_all(self, tag: int, limit: float, wait_all_ranks: bool) -> None:
        if limit <= 0:
            raise TimeoutError(f"[Rank 0]: Rank 0 timed out in monitoredBarrier after {limit * 1000:.0f} ms")
        deadline = time.monotonic() + limit
        reports = {rank: _Word(self, tag).from_rank(rank) for rank in range(1, self._size)}
        missing = []
        for rank, report in reports.items():
            if not _came(report, deadline):
                missing.append(rank)
                if not wait_all_ranks:
                    break
        answer = missing[0] if missing else _ALL_HERE
        answers = [_Word(self, tag, answer).to_rank(rank) for rank, report in reports.items() if _came(report, 0.0)]
        for word in answers:
            # As little as one message may be on its way to a rank that dies now, which is no matter of this barrier.
            _came(word, time.monotonic() + 1.0)
        if missing:
            who = f"Rank {missing[0]}" if len(missing) == 1 else f"Ranks {', '.join(map(str, missing))}"
            error = TimeoutError(f"[Rank 0]: {who} failed to pass monitoredBarrier in {limit * 1000:.0f} ms")
            error.peer = missing[0]
            raise error

    def _report_to_first(self, tag: int, limit: float) -> None:
        deadline = time.monotonic() + limit
        answer = _Word(self, tag).from_rank(0)
        _Word(self, tag, self._rank).to_rank(0)
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


class _Word:
    """A number on its way between two ranks."""

    def __init__(self, group: Any, tag: int, value: int = 0) -> None:
        self._group, self._tag = group, tag
        self._memory = torch.tensor([value], dtype=torch.int64)
        self._request: Any = None

    @property
    def value(self) -> int:
        return int(self._memory.item())

    def from_rank(self, rank: int) -> _Word:
        return self._on_its_way(self._group._post.post_recv, rank)

    def to_rank(self, rank: int) -> _Word:
        return self._on_its_way(self._group._post.post_send, rank)

    def _on_its_way(self, way: Any, rank: int) -> _Word:
        group = self._group
        peer, context = group._post_ranks[rank], 2 * group._context + 1
        self._request = way(peer, context, self._tag, self._memory.data_ptr(), self._memory.nbytes)
        group._words = [word for word in group._words if not word.is_over()] + [self]
        return self

    def wait_until(self, deadline: float) -> bool:
        """Has it come by then? What was to come from a rank that is gone never comes."""
        left = deadline - time.monotonic()
        return self._request.wait(left) if left > 0 else self._request.test()

    def is_over(self) -> bool:
        """May its memory be used otherwise?"""
        try:
            return self._request.test()
        except Error:
            return True


def _came(word: _Word, deadline: float) -> bool:
    try:
        return word.wait_until(deadline)
    except Error:
        return False
