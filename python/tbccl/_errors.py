"""Exceptions of tbccl.

The extension module raises these classes by name. Each is a subclass of `Error` and has its attributes.
"""

from __future__ import annotations

import builtins


class Error(RuntimeError):
    """Base class of all errors of tbccl. Attributes are None where they do not apply or are not known.

    Attributes:
        code: Number of the error in the C interface (`tbcclResult_t` of tbccl.h).
        rank: Rank that reports the error.
        peer: Rank that the error concerns.
        host: Name of the peer's host.
        device: Device, or the cable with the devices at both ends.
        call: Call that failed, as "all_reduce of 8 f32, op sum".
        step: Step of the call's plan that was in progress, as `tbccl plan show` prints it.
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
        """Kind of the failure as a word: the class name without "Error", in lower case."""
        return type(self).__name__.removesuffix("Error").lower()

    def __reduce__(self):
        # Pickle calls the class with `args` alone; the keyword arguments return as attributes.
        return (type(self), self.args, self.__dict__)


class InvalidArgumentError(Error, ValueError):
    """An argument is invalid. The communicator stays usable."""


class IllegalOperationError(InvalidArgumentError):
    """The element type does not support the reduction operation."""


class UnknownNameError(InvalidArgumentError):
    """An option, algorithm, transport or codec has an unknown name. The message suggests the nearest one."""


class UsageError(Error):
    """The call is not possible in the present state, for instance after a fork or before `init`."""


class NoPlanError(Error):
    """No algorithm can do the call on this topology with these options."""


class PeerDiedError(Error):
    """The process of a peer ended."""


class PeerLeftError(Error):
    """A peer closed its communicator without taking part in the call."""


class MismatchError(Error):
    """Ranks disagree on a call: its kind, length, element type or operation."""


class TimeoutError(Error, builtins.TimeoutError):
    """A call made no progress within its time limit."""


class RemoteError(Error):
    """Another rank failed first; the message is that rank's error."""


class AbortedError(Error):
    """The program aborted the communicator on this rank."""


class TruncatedError(Error):
    """A message was longer than the receive buffer. The message is lost; other messages continue."""


class TransportError(Error):
    """A link or its registered memory failed or could not be set up."""


class BootstrapError(Error):
    """The ranks could not find or reach each other while a communicator was made."""


class LauncherGoneError(Error):
    """The launcher that started this job ended."""


class ResourceError(Error):
    """The operating system refused a resource, such as memory or file descriptors."""


class InternalError(Error):
    """Internal error: a defect of the library. Please report it."""
