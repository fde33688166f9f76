"""Point-to-point messages with tags, from one rank or any. No call blocks.

If tbccl is the backend of the default group, all groups send through its communicator; the context, a number
of each group, keeps their messages apart. Otherwise a group uses its own communicator.
"""

from __future__ import annotations

from typing import Any

import torch

from tbccl import Error

from .collectives import single_tensor
from .tensors import check_no_nan, contiguous_input, contiguous_output
from .work import RecvWork, SendWork, Work


class PointToPoint:
    """Mixin of `ProcessGroup`: sends and receives."""

    def _init_p2p(self, p2p_group: Any, context: int) -> None:
        """Sets the communicator of the messages: that of ``p2p_group``, or this group's own without one."""
        self._context = context
        self._p2p_group = self if p2p_group is None else p2p_group
        self._p2p_comm = self._p2p_group._comm
        #: Ranks of this group's members in the communicator of the messages.
        self._p2p_ranks = list(range(self._size)) if p2p_group is None else self._global_ranks
        self._group_rank_by_p2p_rank = {
            p2p_rank: group_rank for group_rank, p2p_rank in enumerate(self._p2p_ranks)
        }
        #: Messages in flight, by id() of their work: messages may complete in any order.
        self._messages: dict[int, Work] = {}
        self._prune_threshold = 16
        #: Messages of monitored barriers in flight.
        self._barrier_messages: list[Any] = []
        #: Messages in flight of groups that have ended; their memory may be in use until this group ends.
        self._orphans: list[Any] = []

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Work | None:
        """Sends a tensor to a rank. The work is done when the tensor may be written again."""
        tensor = single_tensor(tensors)
        buffer = contiguous_input(tensor)
        peer = self._p2p_ranks[self._checked_rank(dstRank)]
        if self._checks_nan:
            check_no_nan(buffer)
        tag, stager = self._checked_tag(tag), self._stager

        def post(address: int, length: int) -> Any:
            return self._p2p_comm.post_send(peer, 2 * self._context, tag, address, length)

        try:
            if not buffer.is_cpu or (stager is not None and stager.has_unposted):
                request = self._opened_stager().send(buffer, post)
            else:
                request = post(buffer.data_ptr(), buffer.nbytes)
        except Error as error:
            raise self._annotated(error)
        return self._defer_to_batch(self._track_message(SendWork(self, request, [tensor], buffer)))

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Work | None:
        """Receives a tensor from a rank."""
        return self._receive(single_tensor(tensors), self._p2p_ranks[self._checked_rank(srcRank)], tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work | None:
        """Receives a tensor from any rank; the work's ``source_rank`` tells which."""
        return self._receive(single_tensor(tensors), -1, tag)

    def _receive(self, tensor: torch.Tensor, peer: int, tag: int) -> Work | None:
        buffer, copy_back = contiguous_output(tensor)
        host, write = (buffer, None) if buffer.is_cpu else self._opened_stager().receive(buffer)

        def on_complete(request: Any) -> None:
            if request.nbytes != buffer.nbytes:
                raise Error(
                    f"rank {self._group_rank_of(request.source)} sent {request.nbytes} bytes with tag {tag}, "
                    f"but the receiving tensor has {buffer.nbytes}: both must have the same size"
                )
            if write is not None:
                work._events = write(copy_back)
            elif copy_back is not None:
                copy_back()

        try:
            request = self._p2p_comm.post_recv(
                peer, 2 * self._context, self._checked_tag(tag), host.data_ptr(), buffer.nbytes
            )
        except Error as error:
            raise self._annotated(error)
        work = RecvWork(self, request, [tensor], (buffer, host), on_complete)
        return self._defer_to_batch(self._track_message(work))

    def _track_message(self, work: Work) -> Work:
        """Keeps the memory of a message alive until it is done, even if the program drops the work."""
        messages = self._messages
        if len(messages) >= self._prune_threshold:
            for message in list(messages.values()):
                message.is_completed()  # removes it if it is done
            self._prune_threshold = max(16, 2 * len(messages))
        messages[id(work)] = work
        return work

    def _hand_over_messages(self) -> None:
        """Passes the messages in flight to the group whose communicator carries them, without waiting.

        Messages that nobody sends never complete.
        """
        messages = [message for message in list(self._messages.values()) if not message.is_completed()]
        barrier_messages = [message for message in self._barrier_messages if not message.is_finished()]
        self._messages, self._barrier_messages = {}, []
        owner = self._p2p_group
        owner._orphans = (
            [orphan for orphan in owner._orphans if not orphan.is_finished()] + messages + barrier_messages
        )

    def _checked_rank(self, rank: Any) -> int:
        """Returns ``rank`` as an integer, after checking that it is a rank of the group."""
        rank = int(rank)
        if not 0 <= rank < self._size:
            raise ValueError(f"rank {rank} is not one of the {self._size} ranks of group {self._name}")
        return rank

    @staticmethod
    def _checked_tag(tag: int) -> int:
        """Returns ``tag``, after checking its range."""
        if not 0 <= tag < 2**31:
            raise ValueError(f"tag {tag} is not one of 0..{2**31 - 1}")
        return tag

    def _group_rank_of(self, p2p_rank: int) -> int:
        """Returns the rank in this group of a rank of the messages' communicator, or -1."""
        return self._group_rank_by_p2p_rank.get(p2p_rank, -1)
