"""The extension module: what the package stands on. Addresses are numbers, and whoever calls keeps their memory alive."""

from typing import Any, Iterable, Mapping, Sequence, final

__version__: str
UNIQUE_ID_BYTES: int

# What is called.
ALL_REDUCE: int
REDUCE: int
BROADCAST: int
ALL_GATHER: int
REDUCE_SCATTER: int
ALL_TO_ALL: int
GATHER: int
SCATTER: int
SCAN: int
EXCLUSIVE_SCAN: int
BARRIER: int
SEND: int
RECV: int
ALL_REDUCE_QUANTIZED: int
ALL_GATHER_V: int
REDUCE_SCATTER_V: int
GATHER_V: int
SCATTER_V: int
ALL_TO_ALL_V: int

# Element types, as tbccl.h numbers them.
INT8: int
UINT8: int
INT16: int
UINT16: int
INT32: int
UINT32: int
INT64: int
UINT64: int
FLOAT16: int
FLOAT32: int
FLOAT64: int
BFLOAT16: int
BOOL: int
COMPLEX64: int

# Operations, as tbccl.h numbers them.
SUM: int
PROD: int
MAX: int
MIN: int
AVG: int
BAND: int
BOR: int
BXOR: int

# Codecs, as tbccl.h numbers them: the root of an ALL_REDUCE_QUANTIZED.
CODEC_INT8: int
CODEC_INT8_BLOCK64: int
CODEC_INT8_BLOCK256: int
CODEC_BF16: int

#: The number of each codec, by name: "int8", "int8/64", "int8/256" and "bf16".
CODECS: dict[str, int]

#: (what, dtype, op, count, send_addr, recv_addr, root); the count of a call with lengths is a pair of lists or None.
_RawCall = tuple[int, int, int, Any, int, int, int]

@final
class Made:
    """A communicator that was made, for the class that is made of it."""

class Communicator:
    """A communicator, and its calls on memory by address. All arguments of raw calls are positional."""

    def __new__(cls, made: Made, /) -> Communicator: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def transport(self) -> str: ...
    @property
    def is_closed(self) -> bool: ...
    def raw_call(
        self,
        what: int,
        dtype: int,
        op: int,
        count: int,
        send_addr: int,
        recv_addr: int,
        root: int = 0,
        timeout: float | None = None,
        scale: float | None = None,
        /,
    ) -> None:
        """Makes a call, and waits until it is done. Contributions are multiplied by `scale` first."""
    def raw_issue(
        self,
        what: int,
        dtype: int,
        op: int,
        count: int,
        send_addr: int,
        recv_addr: int,
        root: int = 0,
        timeout: float | None = None,
        scale: float | None = None,
        keep: object = None,
        /,
    ) -> Request:
        """Has a call made after all that was issued before. `keep` stays alive until it is done, whoever drops the request."""
    def raw_call_v(
        self,
        what: int,
        dtype: int,
        op: int,
        send_counts: Sequence[int] | None,
        recv_counts: Sequence[int] | None,
        send_addr: int,
        recv_addr: int,
        root: int = 0,
        timeout: float | None = None,
        /,
    ) -> None:
        """Makes a call with a count for each block."""
    def raw_issue_v(
        self,
        what: int,
        dtype: int,
        op: int,
        send_counts: Sequence[int] | None,
        recv_counts: Sequence[int] | None,
        send_addr: int,
        recv_addr: int,
        root: int = 0,
        timeout: float | None = None,
        keep: object = None,
        /,
    ) -> Request: ...
    def raw_group(self, calls: Iterable[_RawCall], timeout: float | None = None, /) -> None:
        """Makes calls together."""
    def raw_issue_group(
        self, calls: Iterable[_RawCall], timeout: float | None = None, keep: object = None, /
    ) -> Request: ...
    def raw_isend(
        self, peer: int, context: int, tag: int, addr: int, nbytes: int, keep: object = None, /
    ) -> Request:
        """Sends bytes as a message of a context with a tag."""
    def raw_irecv(
        self, peer: int, context: int, tag: int, addr: int, nbytes: int, keep: object = None, /
    ) -> Request:
        """Receives a message of a context, from a rank or any (-1), with a tag or any (-1)."""
    def _with_options(
        self,
        timeout: float | None = None,
        algorithm: str | None = None,
        segments: int | None = None,
        numerics: str | None = None,
    ) -> Made: ...
    def abort(self) -> None:
        """Ends the communicator for good, from any thread and promptly."""
    def close(self) -> None:
        """Waits for what was issued, then closes this rank's part of the communicator."""
    def async_error(self) -> Exception | None:
        """What has made the communicator fail, if it has."""
    def stats(self) -> dict[str, Any]:
        """What has been done so far: calls begun and finished, and counters of links, together and by peer."""
    def dump(self) -> str:
        """The flight recorder as lines of JSON."""

@final
class Request:
    """A call that was issued."""

    def wait(self, timeout: float | None = None, /) -> bool:
        """Waits until it is done. False: not done in time."""
    def test(self) -> bool:
        """Is it done?"""
    @property
    def source(self) -> int | None:
        """Who sent the message, once it is done."""
    @property
    def tag(self) -> int | None: ...
    @property
    def nbytes(self) -> int | None: ...

@final
class View:
    """Elements of an object, where they are. The object can't give its memory back while this is there."""

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
    """Registered memory: it has the buffer protocol."""

    def __new__(cls, comm: Communicator, dtype: int, shape: Sequence[int], /) -> Memory: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def view(object: object, writable: bool = False, /) -> View: ...
def view_as(object: object, dtype: int, writable: bool = False, /) -> View: ...
def memory_layout(object: Memory) -> tuple[int, tuple[int, ...]]: ...
def memory_to_dlpack(object: Memory, with_version: bool) -> Any: ...
def unique_id() -> Sequence[int]: ...
def join(
    uid: bytes, rank: int, size: int, timeout: float | None = None, options: Mapping[str, str] | None = None, mail: bool = True
) -> Made: ...
def join_from_env(timeout: float | None = None, options: Mapping[str, str] | None = None, mail: bool = True) -> Made: ...
def split(
    comm: Communicator,
    color: int | None,
    key: int = 0,
    timeout: float | None = None,
    options: Mapping[str, str] | None = None,
    mail: bool = True,
) -> Made | None: ...
def shrink(
    comm: Communicator,
    without: Sequence[int],
    timeout: float | None = None,
    options: Mapping[str, str] | None = None,
    mail: bool = True,
) -> Made: ...
def grow(
    comm: Communicator,
    uid: bytes | None,
    size: int,
    timeout: float | None = None,
    options: Mapping[str, str] | None = None,
    mail: bool = True,
) -> Made: ...
def grow_id(comm: Communicator) -> Sequence[int]: ...
def _close_all() -> None: ...
