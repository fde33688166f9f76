"""Tagged messages of a communicator, blocking and asynchronous."""

from __future__ import annotations

import time
from typing import Any, TypeVar

from tbccl import _calls
from tbccl._elements import view
from tbccl._work import Work

A = TypeVar("A")


class Messages:
    """Tagged messages of a communicator, on arrays.

    The class is mixed into `Communicator`, whose native base class posts messages by address.
    """

    def send(self: Any, data: Any, to: int, tag: int = 0, *, timeout: float | None = None) -> None:
        """Sends an array to a rank as a message with a tag.

        Returns when the array may be written again, which does not mean that the message was received. Both
        ranks of a pair may send first. If several messages match a receive, it takes the one that was sent
        first.

        Args:
            data: Array to send. The message has its length in bytes, and no element type.
            to: Rank that receives the message.
            tag: Number that receives select messages by, 0 to 2**31 - 1.
            timeout: Seconds to wait at most; None: until it is done or fails.

        Raises:
            InvalidArgumentError: `to` or `tag` is out of range, the array is not contiguous, or 65,536
                messages to the rank wait for their receives.
            UsageError: The communicator was made with `mail=False`.
            TimeoutError: The message was not sent within `timeout`. The send goes on.
            PeerDiedError: The process of the receiver ended.
            PeerLeftError: The receiver closed its communicator.
        """
        self.send_async(data, to, tag).result(timeout)

    def send_async(self: Any, data: Any, to: int, tag: int = 0) -> Work[None]:
        """Starts `send` and returns its `Work`. Do not write to the array until it is done."""
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
        """Receives a message into `out`.

        `recv_async` also tells the sender, tag and length of the message. A message that is shorter than
        `out` leaves the rest of `out` unchanged.

        Args:
            out: Array for the message.
            source: Rank that sends the message; None: any rank.
            tag: Tag of the message; None: any tag.
            timeout: Seconds to wait at most; None: until it is done or fails.

        Returns:
            `out`.

        Raises:
            InvalidArgumentError: `source` or `tag` is out of range, or `out` is not writable or contiguous.
            UsageError: The communicator was made with `mail=False`.
            TruncatedError: The message is longer than `out`.
            TimeoutError: No message arrived within `timeout`. The receive goes on.
            PeerDiedError: The process of the sender ended.
            PeerLeftError: The sender closed its communicator.
        """
        return self.recv_async(out, source, tag).result(timeout)

    def recv_async(self: Any, out: A, source: int | None = None, tag: int | None = None) -> Work[A]:
        """Starts `recv` and returns a `Work` with its result.

        Once it is done, its `source`, `tag` and `nbytes` describe the message.
        """
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
        """Sends an array to one rank and receives a message from another at the same time.

        Args:
            data: Array to send.
            to: Rank that receives `data`.
            out: Array for the received message.
            source: Rank that sends the message to receive; None: any rank.
            tag: Tag of the message that is sent.
            recv_tag: Tag of the message to receive; None: any tag.
            timeout: Seconds to wait at most for both; None: until they are done or fail.

        Returns:
            `out`.

        Raises:
            Error: As in `send` and `recv`. The first of the two that fails ends the call.
        """
        received = self.recv_async(out, source, recv_tag)
        _wait_for_all([received, self.send_async(data, to, tag)], timeout)
        return out


#: Seconds that a wait looks at one message before it looks at the next one.
_TURN_SECONDS = 0.02


def _wait_for_all(messages: list[Work[Any]], timeout: float | None) -> None:
    """Waits until messages are done, and raises the first error of any of them.

    Each message in turn, since the peer of one may fail while another peer takes its time.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while len(messages) > 1:
        left = _TURN_SECONDS if deadline is None else deadline - time.monotonic()
        messages = [message for message in messages if not message.wait(max(0.0, min(left, _TURN_SECONDS)))]
        if left <= 0:
            break
    for message in messages:
        message.result(None if deadline is None else max(0.0, deadline - time.monotonic()))
