"""Messages between two ranks, with tags, from a certain rank or any. None of them blocks.

All groups use the communicator of the default group where that is one of tbccl; a number of the group's own, the context,
keeps their messages apart. A group of whose members another backend makes the default group uses its own.
"""

from __future__ import annotations

from typing import Any

import torch

from tbccl import Error

from .collectives import the_one
from .tensors import source, target
from .work import Message, Work


class Messages:
    """Sending and receiving."""

    def _open_mail(self, post: Any, context: int) -> None:
        """Messages go by way of ``post``'s communicator, or of this group's own without one."""
        self._context = context
        self._post_group = self if post is None else post
        self._post = self._post_group._comm
        #: What the ranks of this group are called there.
        self._post_ranks = list(range(self._size)) if post is None else self._global_ranks
        self._by_post_rank = {there: here for here, there in enumerate(self._post_ranks)}
        #: What is on its way, by its identity: messages may arrive in any order.
        self._letters: dict[int, Work] = {}
        self._letters_full = 16
        #: Words of monitored barriers whose memory may still be used.
        self._words: list[Any] = []
        #: What groups that have ended had on its way, whose memory may be used until this group has ended.
        self._orphans: list[Any] = []

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Work | None:
        """Sends a tensor. The work is done when its memory may be used again."""
        tensor = the_one(tensors)
        piece = source(tensor)
        peer = self._post_ranks[self._peer(dstRank)]
        try:
            request = self._post.post_send(peer, 2 * self._context, self._tag(tag), piece.data_ptr(), piece.nbytes)
        except Error as error:
            raise self._told(error)
        return self._beside(self._track_message(Work(self, request, [tensor], piece)))

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Work | None:
        """Receives a tensor from a rank."""
        return self._receive(the_one(tensors), self._post_ranks[self._peer(srcRank)], tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work | None:
        """Receives a tensor from whichever rank has sent one first; the work says which."""
        return self._receive(the_one(tensors), -1, tag)

    def _receive(self, tensor: torch.Tensor, peer: int, tag: int) -> Work | None:
        piece, then = target(tensor)

        def after(request: Any) -> None:
            if request.nbytes != piece.nbytes:
                raise Error(
                    f"rank {self._group_rank_of(request.source)} sent {request.nbytes} bytes with tag {tag}, and the "
                    f"tensor that receives them has {piece.nbytes}: both ends are to have the same number"
                )
            if then is not None:
                then()

        try:
            request = self._post.post_recv(peer, 2 * self._context, self._tag(tag), piece.data_ptr(), piece.nbytes)
        except Error as error:
            raise self._told(error)
        return self._beside(self._track_message(Message(self, request, [tensor], piece, after)))

    def _track_message(self, work: Work) -> Work:
        """Keeps what a message is in until it is there, even if the program forgets its work."""
        letters = self._letters
        if len(letters) >= self._letters_full:
            for letter in list(letters.values()):
                letter.is_completed()  # forgets it if it is
            self._letters_full = max(16, 2 * len(letters))
        letters[id(work)] = work
        return work

    def _leave_mail(self) -> None:
        """Leaves what is on its way to the group whose communicator carries it. Nobody waits for it: it may never come."""
        letters = [letter for letter in list(self._letters.values()) if not letter.is_completed()]
        words = [word for word in self._words if not word.is_over()]
        self._letters, self._words = {}, []
        keeper = self._post_group
        keeper._orphans = [orphan for orphan in keeper._orphans if not orphan.is_over()] + letters + words

    def _peer(self, rank: Any) -> int:
        rank = int(rank)
        if not 0 <= rank < self._size:
            raise ValueError(f"rank {rank} is not one of the {self._size} ranks of group {self._name}")
        return rank

    @staticmethod
    def _tag(tag: int) -> int:
        if not 0 <= tag < 2**31:
            raise ValueError(f"tag {tag} is not one of 0..{2**31 - 1}")
        return tag

    def _group_rank_of(self, there: int) -> int:
        return self._by_post_rank.get(there, -1)
