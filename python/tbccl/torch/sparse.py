"""All-reduce of sparse tensors: every rank gets the sum, with the indices of all ranks.

The non-zero elements of all ranks are gathered, and every rank adds them up in the same order, so all get the same bits. How
many a rank has must be known before they are, so that such a call always blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tbccl import Error, _native

from . import reductions
from .tensors import moved, source
from .work import Done


class Sparse:
    """The operation on sparse tensors."""

    def _allreduce_sparse(self, tensor: torch.Tensor, opts: Any) -> Done:
        """Reduces a COO tensor in place."""
        op, factor = reductions.resolved(opts.reduceOp)
        if not reductions.is_additive(op):
            raise ValueError("sparse tensors can be summed and averaged, not reduced otherwise")
        if not tensor.is_cpu:
            raise ValueError(f"tbccl communicates tensors in the memory of processors, and this one is on {tensor.device}")
        own = tensor.detach().coalesce()
        indices, values = own.indices(), own.values()
        if factor is not None:
            values = reductions.scaled(values, factor)
        limit = self._limit(opts)
        self._sequence += 1
        try:
            counts = self._numbers_of_elements(own, limit)
            all_indices = self._pieces_of_all(indices.t().contiguous(), counts, limit)
            all_values = self._pieces_of_all(values.contiguous(), counts, limit)
        except Error as error:
            raise self._told(error)
        total = torch.sparse_coo_tensor(all_indices.t(), all_values, own.shape, check_invariants=False).coalesce()
        if op == _native.AVG:
            total = total / self._size
        with torch.no_grad():
            tensor.copy_(total)
        return Done([tensor])

    def _numbers_of_elements(self, own: torch.Tensor, limit: float | None) -> list[int]:
        """How many elements each rank has. Raises ValueError where shapes differ."""
        shape = [own.sparse_dim(), *own.shape]
        mine = torch.tensor([own.indices().size(1), *shape], dtype=torch.int64)
        theirs = mine.new_empty(self._size, mine.numel())
        number, dtype = _native.ALL_GATHER, _native.INT64
        self._comm.submit(number, dtype, 0, mine.numel(), mine.data_ptr(), theirs.data_ptr(), 0, limit)
        for rank, told in enumerate(theirs.tolist()):
            if told[1:] != shape:
                raise ValueError(
                    f"rank {rank} has a tensor of shape {told[2:]} with {told[1]} sparse dimensions, and this rank one of "
                    f"shape {shape[1:]} with {shape[0]}"
                )
        return theirs[:, 0].tolist()

    def _pieces_of_all(self, rows: torch.Tensor, counts: Sequence[int], limit: float | None) -> torch.Tensor:
        """The rows of all ranks, of which there are so many."""
        rows = source(rows)
        everything = rows.new_empty(sum(counts), *rows.shape[1:])
        if everything.numel() == 0:
            return everything
        dtype, elements = moved(everything)
        lengths = [count * (elements // sum(counts)) for count in counts]
        number, counts = _native.ALL_GATHER_V, (None, lengths)
        self._comm.submit(number, dtype, 0, counts, rows.data_ptr(), everything.data_ptr(), 0, limit)
        return everything
