"""Base of the stages that compress differences, the coders.

The differences of a group (`model`, SCAFFOLD's `c`) are one vector, of all tensors in the order of
their names: other groups have other units. A coder replaces it by the decoded vector, so that the
server's sum is exactly the sum of decoded vectors. Values are coded, and decoded, in float32, in
float64 where the network has it. A coder leaves a vector that is not finite as it is; the engine
refuses it by client and tensor.

Buffers are sent as they are, as by torch's DistributedDataParallel and its hooks: BatchNorm's
running statistics have other units, and a variance that is decoded with an error may be below 0.

A quantiser after a stage that sends fewer values codes only the values that are not 0: zeros stay
zeros, and blocks and scales are of the sent values.

Legend: d values of a group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from raysim.api.channel import Stage
from raysim.api.rules import Upload, View
from raysim.numbers.encoding import Encoding
from raysim.numbers.tensors import Layout, Tensors, is_finite

SCALE_BYTES = 4
"""Bytes of a scale or norm that is sent with values."""
SEED_BYTES = 8
"""Bytes of the seed of random places."""
WIDE = (torch.float64, torch.complex128)


class Draws:
    """Random draws of a client for one stage.

    Attributes:
        view: The client.
    """

    def __init__(self, view: View) -> None:
        self.view = view

    @cached_property
    def own(self) -> torch.Generator:
        """A generator of the client."""
        return self.view.generator("code")

    @cached_property
    def common(self) -> torch.Generator:
        """A generator with the same draws for all clients of the pass."""
        return self.view.pass_generator("code")


@dataclass(frozen=True)
class Vector:
    """Differences of a group as one vector.

    Attributes:
        values: The values [d].
        shapes: Shapes of its tensors, in order; [n] for a vector of n sent values.
        draws: Random draws.
    """

    values: Tensor
    shapes: Sequence[torch.Size]
    draws: Draws

    @property
    def parts(self) -> Sequence[Tensor]:
        """The values of each tensor, flat."""
        return torch.split(self.values, [shape.numel() for shape in self.shapes])


class Coder(Stage, ABC):
    """Stage that compresses the differences of each group as one vector."""

    quantises: ClassVar[bool] = False
    """Whether it changes how values are sent, not which."""
    leaves_buffers: ClassVar[bool] = True  # parameters are coded

    @abstractmethod
    def code(self, vector: Vector) -> Tensor:
        """Return the values as the server decodes them [d]."""

    def send(self, view: View, upload: Upload) -> Upload:
        """Code the differences of each group."""
        groups = {g: dict(sorted(values.items())) for g, values in sorted(upload.sums.items())}
        count = sum(d.numel() for tensors in groups.values() for d in tensors.values())
        sent = upload.encoding.values if upload.encoding else count
        draws, sums = Draws(view), dict[str, Tensors]()
        for group, tensors in groups.items():
            flat = torch.cat([d.reshape(-1) for d in tensors.values()]).to(dtype_of(view))
            if not is_finite(flat):
                return upload
            vector = Vector(flat, [d.shape for d in tensors.values()], draws)
            coded = self._of_sent(vector) if self.quantises and sent < count else self.code(vector)
            sums[group] = _apart(coded.double(), tensors)
        return replace(upload, sums=sums)

    def _of_sent(self, vector: Vector) -> Tensor:
        """Return a vector with only the values that are not 0 coded."""
        sent = vector.values != 0
        counts = [int(part.count_nonzero()) for part in vector.parts]
        shapes = [torch.Size([count]) for count in counts]
        coded = torch.zeros_like(vector.values)
        coded[sent] = self.code(replace(vector, values=vector.values[sent], shapes=shapes))
        return coded


def dtype_of(view: View) -> torch.dtype:
    """Return the dtype in which a client's values are coded and kept."""
    wide = any(tensor.dtype in WIDE for tensor in view.params.values())
    return torch.float64 if wide else torch.float32


def _apart(flat: Tensor, tensors: Tensors) -> dict[str, Tensor]:
    """Return the tensors of one vector."""
    parts = torch.split(flat, [d.numel() for d in tensors.values()])
    return {
        name: part.view(d.shape) for (name, d), part in zip(tensors.items(), parts, strict=True)
    }


def vector_sizes(layout: Layout, *, per_tensor: bool = False) -> list[int]:
    """Return the values of each vector: of each group, or of each tensor; complex ones are two."""
    sizes: dict[str, list[int]] = {}
    for key, dtype, shape in layout.entries:
        group = key.partition("/")[0]
        sizes.setdefault(group, []).append(shape.numel() * (2 if dtype.is_complex else 1))
    of_groups = sizes.values()
    return [n for counts in of_groups for n in counts] if per_tensor else [*map(sum, of_groups)]


def count_blocks(sent: Encoding, layout: Layout, size: int | None) -> int:
    """Return the number of blocks of sent values; no block spans two groups.

    If the number of values of each group is not known, each group counts as if its last block was
    begun.

    Args:
        sent: The sent values.
        layout: Layout of the differences.
        size: Values of a block; None: a block is a group.
    """
    vectors = vector_sizes(layout)
    if size is None:
        return len(vectors)
    if sent.values == sum(vectors):
        return sum(-(-d // size) for d in vectors)
    return -(-sent.values // size) + len(vectors) - 1


def blocks_of(values: Tensor, size: int | None) -> Tensor:
    """Return values [d] as blocks [n, size], the last of several padded with zeros."""
    size = max(min(size or len(values), len(values)), 1)
    return torch.nn.functional.pad(values, (0, -len(values) % size)).view(-1, size)
