"""Futures whose value is a list of tensors in C++, too.

A future that is made in Python has a Python object as value. The hook FP16_COMPRESS that is built into
DistributedDataParallel reads the value in C++, as a list of tensors. TorchScript alone makes such a future
that is not complete yet.
"""

import functools
import warnings
from collections.abc import Callable
from typing import List

import torch


def _after(done: torch.jit.Future[int], tensors: List[torch.Tensor]) -> List[torch.Tensor]:
    torch.jit.wait(done)
    return tensors


@functools.cache
def _compiled() -> Callable[..., torch.futures.Future]:
    """Returns the function that makes a future of tensors which is complete after another one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated; nothing has its place here.
        after = torch.jit.script(_after)

        def typed(
            done: torch.jit.Future[int], tensors: List[torch.Tensor]
        ) -> torch.jit.Future[List[torch.Tensor]]:
            return torch.jit.fork(after, done, tensors)

        return torch.jit.script(typed)


def is_needed(results: list[object]) -> bool:
    """Returns whether C++ may read the results of a call: those of the built-in hook, in host memory."""
    return (
        len(results) == 1
        and isinstance(results[0], torch.Tensor)
        and results[0].dtype is torch.float16
        and results[0].is_cpu
    )


def after(done: torch.futures.Future, tensors: list[torch.Tensor]) -> torch.futures.Future:
    """Returns a future of tensors that is complete, or fails, after another future.

    The other future itself where TorchScript cannot be compiled.
    """
    try:
        return _compiled()(done, tensors)
    except (RuntimeError, OSError, NotImplementedError):
        return done
