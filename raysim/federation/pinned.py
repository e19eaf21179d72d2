"""Way of samples from the host's memory to a GPU, through two pinned buffers.

The host goes on while samples are copied. The pages of mapped files cannot be pinned, so samples
are gathered into a buffer first; the next ones go into the other one meanwhile.
"""

from __future__ import annotations

import torch
from torch import Tensor

BUFFER_BYTES = 16 * 2**20
"""Bytes of a buffer; one of a larger sample is as large as the sample."""


class PinnedRing:
    """Two pinned buffers, used in turn. A buffer is filled again once its copy is done."""

    def __init__(self, device: torch.device) -> None:
        """Make the ring; its buffers are allocated when they are first used.

        Args:
            device: The GPU.
        """
        self._device = device
        self._memory = [torch.empty(0, dtype=torch.uint8)] * 2
        self._copied = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
        self._turn = 0

    def to_device(self, values: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return a tensor of the host, or some of its rows, on the GPU.

        It is there for later work on the current stream.

        Args:
            values: Samples [N, ...].
            rows: Numbers of the wanted ones [n]; None: all.
        """
        count = len(values if rows is None else rows)
        found = values.new_empty((count, *values.shape[1:]), device=self._device)
        at_once = max(1, BUFFER_BYTES // max(1, values[:1].nbytes))
        for start in range(0, count, at_once):
            part = found[start : start + at_once]
            buffer = self._free_buffer(part.nbytes).view(values.dtype).view(part.shape)
            if rows is None:
                buffer.copy_(values[start : start + at_once])
            else:
                torch.index_select(values, 0, rows[start : start + at_once], out=buffer)
            part.copy_(buffer, non_blocking=True)
            self._copied[self._turn].record()
        return found

    def _free_buffer(self, nbytes: int) -> Tensor:
        """Return `nbytes` bytes of the next buffer, once its copy is done."""
        self._turn = 1 - self._turn
        self._copied[self._turn].synchronize()
        if self._memory[self._turn].nbytes < nbytes:
            size = max(nbytes, BUFFER_BYTES)
            self._memory[self._turn] = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return self._memory[self._turn][:nbytes]
