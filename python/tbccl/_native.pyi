"""The extension module, on which the package is built.

Memory is passed by address: the caller keeps it alive until the call is done, or passes an object that does
as `keep`.
"""

from typing import Any, Iterable, Mapping, Sequence, final

__version__: str
UNIQUE_ID_BYTES: int

# Numbers, which tests/cli/vocabulary.rs writes from the tables of the library.

# Collectives and messages.
ALL_REDUCE: int
ALL_REDUCE_QUANTIZED: int
ALL_GATHER: int
ALL_GATHER_V: int
REDUCE_SCATTER: int
REDUCE_SCATTER_V: int
BROADCAST: int
REDUCE: int
GATHER: int
GATHER_V: int
SCATTER: int
SCATTER_V: int
ALL_TO_ALL: int
ALL_TO_ALL_V: int
SCAN: int
EXCLUSIVE_SCAN: int
BARRIER: int
SEND: int
RECV: int

# Element types, as tbccl.h numbers them.
FLOAT32: int
FLOAT64: int
FLOAT16: int
BFLOAT16: int
INT8: int
INT16: int
INT32: int
INT64: int
UINT8: int
UINT16: int
UINT32: int
UINT64: int
BOOL: int
COMPLEX64: int

# Operations, as tbccl.h numbers them.
SUM: int
PROD: int
MIN: int
MAX: int
AVG: int
BAND: int
BOR: int
BXOR: int

# Codecs, as tbccl.h numbers them. ALL_REDUCE_QUANTIZED takes its codec as `root`.
CODEC_INT8: int
CODEC_INT8_BLOCK64: int
CODEC_INT8_BLOCK256: int
CODEC_BF16: int

#: The same numbers by their public names: "float32", "sum", "int8/64".
DTYPES: dict[str, int]
OPS: dict[str, int]
CODECS: dict[str, int]

#: Long names of the element types, by short name: "float32" by "f32".
SHORT_NAMES: dict[str, str]

#: Formats of the elements that memoryview.cast accepts, by number of the element type.
MEMORYVIEW_FORMATS: dict[int, str]

#: Lengths of the blocks of a vector form, in elements: those sent and those received.
_Counts = tuple[Sequence[int] | None, Sequence[int] | None]

#: (call, dtype, op, count, send, recv, root)
_Call = tuple[int, int, int, int | _Counts, int, int, int]

@final
class CommunicatorHandle:
    """A new communicator, as the argument of `Communicator`."""

class Communicator:
    """Communicator with calls on memory by address. All arguments of calls are positional."""

    def __new__(cls, handle: CommunicatorHandle, /) -> Communicator: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def transport(self) -> str: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def _is_interrupted(self) -> bool:
        """Whether the caller is a signal handler that has interrupted a wait on this communicator."""
    def submit(
        self,
        call: int,
        dtype: int,
        op: int,
        count: int | _Counts,
        send: int,
        recv: int,
        root: int = 0,
        timeout: float | None = None,
        scale: float | None = None,
        wait: bool = True,
        keep: object = None,
        /,
    ) -> Request | None:
        """Submits a collective on memory by address.

        Args:
            call: Number of the collective.
            dtype: Number of the element type.
            op: Number of the reduction operation.
            count: Elements of a block, or the lengths of all blocks.
            send: Address of the input.
            recv: Address of the output.
            root: Root rank, or the codec.
            timeout: Seconds that the call may wait without progress.
            scale: Factor of this rank's contribution.
            wait: Whether to wait until the call is done.
            keep: Object to keep alive until the call is done.

        Returns:
            None if `wait`, else the request.
        """
    def submit_group(
        self, calls: Iterable[_Call], timeout: float | None = None, wait: bool = True, keep: object = None, /
    ) -> Request | None:
        """Submits several collectives and messages, which progress together."""
    def post_send(
        self, peer: int, context: int, tag: int, addr: int, nbytes: int, keep: object = None, /
    ) -> Request:
        """Sends `nbytes` bytes as a message with a context and a tag."""
    def post_recv(
        self, peer: int, context: int, tag: int, addr: int, nbytes: int, keep: object = None, /
    ) -> Request:
        """Receives a message of a context, from a rank or any (-1), with a tag or any (-1)."""
    def _with_options(
        self,
        timeout: float | None = None,
        algorithm: str | None = None,
        segments: int | None = None,
        numerics: str | None = None,
    ) -> CommunicatorHandle: ...
    def abort(self) -> None:
        """Aborts the communicator, from any thread.

        Calls in progress and later ones raise AbortedError here, and an error on the other ranks.
        """
    def close(self, *, within: float | None = None) -> None:
        """Waits for issued calls, then closes this rank's part of the communicator.

        In a signal handler that has interrupted a wait on the communicator, aborts it instead; it is closed
        when the wait has ended.

        Args:
            within: Longest wait in seconds, after the issued calls, for sent messages to arrive, and then in
                rank 0's process without a launcher for the other ranks to close theirs; None: the
                communicator's limit. Messages that have not arrived by then may be lost. The others can go
                on with calls that do not need this rank, as long as its process runs.

        Raises:
            InvalidArgumentError: ``within`` is negative or not a number. The communicator stays open.
        """
    def async_error(self) -> Exception | None:
        """Returns the error that made the communicator fail, or None."""
    def stats(self) -> dict[str, Any]:
        """Returns statistics: calls begun and finished, and counters of links, in total and per peer."""
    def dump(self) -> str:
        """Returns the flight recorder as lines of JSON."""

@final
class Request:
    """Call or message in progress."""

    def wait(self, timeout: float | None = None, /) -> bool:
        """Waits until the call is done; False if it is not within `timeout` seconds."""
    def test(self) -> bool:
        """Returns whether the call is done."""
    @property
    def source(self) -> int | None:
        """Rank that sent the received message; None before it has arrived."""
    @property
    def tag(self) -> int | None: ...
    @property
    def nbytes(self) -> int | None: ...

@final
class View:
    """Address, count, type and shape of an object's elements. The object cannot free its memory while the
    view exists.
    """

    @property
    def address(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def dtype(self) -> int: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...

class Memory:
    """Registered memory with the buffer protocol."""

    def __new__(cls, comm: Communicator, dtype: int, shape: Sequence[int], /) -> Memory: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def view(object: object, writable: bool = False, /) -> View: ...
def view_as(object: object, dtype: int, writable: bool = False, /) -> View: ...
def memory_layout(object: Memory) -> tuple[int, tuple[int, ...]]: ...
def memory_to_dlpack(object: Memory, with_version: bool) -> Any: ...
def unique_id(for_channel: bool = False) -> Sequence[int]: ...
def join(
    uid: bytes,
    rank: int,
    size: int,
    timeout: float | None = None,
    options: Mapping[str, str] | None = None,
    p2p: bool = True,
    for_channel: bool = False,
) -> CommunicatorHandle: ...
def join_from_env(
    timeout: float | None = None, options: Mapping[str, str] | None = None, p2p: bool = True
) -> CommunicatorHandle: ...
def split(
    comm: Communicator,
    color: int | None,
    key: int = 0,
    timeout: float | None = None,
    options: Mapping[str, str] | None = None,
    p2p: bool = True,
) -> CommunicatorHandle | None: ...
def shrink(
    comm: Communicator,
    without: Sequence[int],
    timeout: float | None = None,
    options: Mapping[str, str] | None = None,
    p2p: bool = True,
) -> CommunicatorHandle: ...
def grow(
    comm: Communicator,
    uid: bytes | None,
    size: int,
    timeout: float | None = None,
    options: Mapping[str, str] | None = None,
    p2p: bool = True,
) -> CommunicatorHandle: ...
def queue_events(level: int) -> bool: ...
def take_events(timeout: float) -> Sequence[tuple[int, str, int | None, str]]: ...
def grow_id(comm: Communicator) -> Sequence[int]: ...
def _close_all() -> None: ...
