"""Arrays in registered memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Sequence

from tbccl import _native
from tbccl._elements import DTYPE_NAMES

if TYPE_CHECKING:
    import numpy

    from tbccl._communicator import Communicator


class Array(_native.Memory):
    """Array in registered memory of a communicator, which peers and devices access in place.

    `tbccl.empty` and `Communicator.empty` make arrays. They support the buffer protocol and DLPack, so numpy,
    torch and MLX wrap the memory without a copy: `array.numpy()`, `torch.from_dlpack(array)`. The memory
    stays valid as long as the array or an array made from it exists, also after the communicator is closed.
    """

    def __init__(self, comm: Communicator, dtype: int, shape: Sequence[int]) -> None:
        self._comm = comm
        self._dtype = dtype
        self._shape = tuple(shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each dimension."""
        return self._shape

    @property
    def dtype(self) -> str:
        """Name of the element type, such as "float32"."""
        return DTYPE_NAMES[self._dtype]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self._shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return memoryview(self).nbytes

    def numpy(self) -> numpy.ndarray[Any, Any]:
        """Returns a numpy array of the same memory.

        numpy has no bfloat16: the elements are then ml_dtypes.bfloat16 if that package is installed, and
        their bits as unsigned 16-bit integers otherwise.
        """
        import numpy

        array = numpy.asarray(memoryview(self))
        if self._dtype != _native.BFLOAT16:
            return array
        try:
            import ml_dtypes
        except ImportError:
            return array
        return array.view(ml_dtypes.bfloat16)

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("an array of no dimensions has no length")
        return self._shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> numpy.ndarray[Any, Any]:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"elements of {self.dtype} can't be seen as {dtype} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if dl_device not in (None, (1, 0)):
            raise BufferError(f"this is host memory, DLPack device (1, 0), not device {dl_device}")
        if copy:
            raise BufferError("tbccl exports its memory without a copy: copy the tensor after from_dlpack()")
        return _native.memory_to_dlpack(self, max_version is not None and max_version[0] >= 1)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def _empty_like(self, shape: Sequence[int]) -> Array:
        return Array(self._comm, self._dtype, shape)

    def __repr__(self) -> str:
        return f"<tbccl.Array of {self.dtype}, shape {self.shape}>"
