"""All-reduce of sparse COO tensors.

Each rank gathers the non-zero elements of all ranks and adds them in the same order, so all ranks get the
same bits. The number of elements of each rank must be known first, so the call always blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tbccl import Error, _native

from . import reductions
from .tensors import transfer_signature, contiguous_input
from .work import CompletedWork


class SparseCollectives:
    """Mixin of `ProcessGroup`: the all-reduce of sparse tensors."""

    def _allreduce_sparse(self, tensor: torch.Tensor, opts: Any) -> CompletedWork:
        """Reduces a COO tensor over all ranks, in place."""
        op, factor = reductions.resolve(opts.reduceOp)
        if not reductions.is_additive(op):
            raise ValueError("sparse tensors can be summed and averaged only: use SUM or AVG")
        own = tensor.detach().cpu().coalesce()
        indices, values = own.indices(), own.values()
        if factor is not None:
            values = reductions.scale(values, factor)
        limit = self._timeout_of(opts)
        self._sequence_number += 1
        self._submit_staged_calls()
        try:
            counts = self._gather_element_counts(own, limit)
            all_indices = self._gather_rows(indices.t().contiguous(), counts, limit)
            all_values = self._gather_rows(values.contiguous(), counts, limit)
        except Error as error:
            raise self._annotated(error)
        total = torch.sparse_coo_tensor(
            all_indices.t(), all_values, own.shape, check_invariants=False
        ).coalesce()
        if op == _native.AVG:
            total = total / self._size
        with torch.no_grad():
            tensor.copy_(total.to(tensor.device))
        return CompletedWork([tensor])

    def _gather_element_counts(self, own: torch.Tensor, limit: float | None) -> list[int]:
        """Returns the number of non-zero elements of each rank.

        Raises:
            ValueError: The shapes differ between ranks.
        """
        shape = [own.sparse_dim(), *own.shape]
        own_header = torch.tensor([own.indices().size(1), *shape], dtype=torch.int64, device="cpu")
        headers = own_header.new_empty(self._size, own_header.numel())
        number, dtype = _native.ALL_GATHER, _native.INT64
        self._comm.submit(
            number, dtype, 0, own_header.numel(), own_header.data_ptr(), headers.data_ptr(), 0, limit
        )
        for rank, header in enumerate(headers.tolist()):
            if header[1:] != shape:
                raise ValueError(
                    f"rank {rank} has a tensor of shape {header[2:]} with {header[1]} sparse dimensions, "
                    f"but this rank one of shape {shape[1:]} with {shape[0]}: both must be equal"
                )
        return headers[:, 0].tolist()

    def _gather_rows(self, rows: torch.Tensor, counts: Sequence[int], limit: float | None) -> torch.Tensor:
        """Returns the rows of all ranks, in the order of ranks.

        Args:
            rows: Rows of this rank.
            counts: Number of rows of each rank.
            limit: Time limit in seconds.
        """
        rows = contiguous_input(rows)
        all_rows = rows.new_empty(sum(counts), *rows.shape[1:])
        if all_rows.numel() == 0:
            return all_rows
        dtype, elements = transfer_signature(all_rows)
        lengths = [count * (elements // sum(counts)) for count in counts]
        number, counts = _native.ALL_GATHER_V, (None, lengths)
        self._comm.submit(number, dtype, 0, counts, rows.data_ptr(), all_rows.data_ptr(), 0, limit)
        return all_rows
