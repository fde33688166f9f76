"""What can go wrong, as exceptions that know who and where.

The extension module raises these by name. Every one of them is an `Error`, and has the attributes of `Error`.
"""

from __future__ import annotations

import builtins


class Error(RuntimeError):
    """What has failed. Attributes are `None` where that is not known.

    Attributes:
        code: The number that the C interface has for it (`tbcclResult_t` of tbccl.h).
        rank: The rank that reports.
        peer: The rank that it is about.
        host: The name of that rank's host.
        device: The device, or the cable with the devices at both ends.
        call: The call that was carried out, as "all_reduce of 8 f32, op sum".
        step: The step that it waited for, as `tbccl plan show` names it.
    """

    def __init__(
        self,
        message: str,
        *,
        code: int = 3,
        rank: int | None = None,
        peer: int | None = None,
        host: str | None = None,
        device: str | None = None,
        call: str | None = None,
        step: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.rank = rank
        self.peer = peer
        self.host = host
        self.device = device
        self.call = call
        self.step = step

    @property
    def cause(self) -> str:
        """The kind of failure as a word: the name of the class without its "Error", in lower case."""
        return type(self).__name__.removesuffix("Error").lower()

    def __reduce__(self):
        # Keyword arguments are restored as attributes, so that exceptions survive a trip between processes.
        return (type(self), self.args, self.__dict__)


class InvalidArgumentError(Error, ValueError):
    """An argument that no call can have."""


class IllegalOperationError(InvalidArgumentError):
    """The element type does not have this operation."""


class UnknownNameError(InvalidArgumentError):
    """Nothing has this name; the message has what is nearest."""


class UsageError(Error):
    """Something that can't be done now: after a fork, after the end."""


class NoPlanError(Error):
    """No algorithm fits the call."""


class PeerDiedError(Error):
    """A peer's process ended."""


class PeerLeftError(Error):
    """A peer closed its communicator without taking part."""


class MismatchError(Error):
    """Two ranks are not in the same call."""


class TimeoutError(Error, builtins.TimeoutError):
    """There was no progress within the time limit."""


class RemoteError(Error):
    """Another rank failed first; this is what it said."""


class AbortedError(Error):
    """The program aborted the communicator, on this rank."""


class TruncatedError(Error):
    """A message was longer than the memory that it was received in. It is gone; all other messages go on."""


class TransportError(Error):
    """A link or its memory failed, or could not be brought up."""


class BootstrapError(Error):
    """The ranks could not be brought together."""


class LauncherGoneError(Error):
    """The launcher that started this job is gone."""


class ResourceError(Error):
    """The operating system refused something."""


class InternalError(Error):
    """A defect of the library."""
