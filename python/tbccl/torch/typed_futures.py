"""Futures whose value is a list of tensors in C++, too.

A future that is made in Python has a Python object as value. The hook FP16_COMPRESS that is built into
DistributedDataParallel reads the value in C++, as a list of tensors. TorchScript alone makes such a future
that is not complete yet, and it knows no devices: nothing would order the hook's copy of the value with the
streams of the program. So the hook gets a value in host memory for tensors on devices. Its copy from there is
done when it returns.
"""

import functools
import sys
import warnings
from collections.abc import Callable, Sequence
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


def typed(done: torch.futures.Future, results: Sequence[object]) -> torch.futures.Future:
    """Returns a future for the caller of the work's ``get_future``.

    The value is a list of tensors in C++, too, if that caller may be the built-in hook.

    Args:
        done: Future of the results.
        results: Tensors that the call writes.
    """
    if len(results) != 1 or not isinstance(results[0], torch.Tensor) or results[0].dtype is not torch.float16:
        return done
    tensor = results[0]
    if not tensor.is_cpu:
        if not _is_called_by_torch():
            return done
        host = torch.empty_like(tensor, device="cpu")
        # The callback runs on streams that torch orders after the call.
        done, tensor = done.then(lambda future: host.copy_(future.value()[0])), host
    try:
        return _compiled()(done, [tensor])
    except (RuntimeError, OSError, NotImplementedError):
        # TorchScript cannot be compiled.
        return done


def _is_called_by_torch() -> bool:
    """Returns whether C++ called the work's ``get_future``: on a thread without Python, or in a backward pass
    that Python has begun.
    """
    depth = 3  # From here over `typed` and `get_future` to its caller.
    try:
        caller = sys._getframe(depth)
    except ValueError:
        return True
    return caller.f_globals.get("__name__", "").startswith("torch.autograd")
