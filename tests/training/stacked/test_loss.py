"""The loss of clients that are trained together is the cross-entropy, and costs no sorting."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

import raysim
from raysim.training.stacked.step import _Stacked


@pytest.mark.parametrize("classes", [1, 5])
@pytest.mark.parametrize("padding", [0, 3])
def test_the_loss_of_a_padded_batch_is_the_cross_entropy(classes, padding):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8 + padding, classes, generator=generator).mul_(4).requires_grad_()
    y = torch.randint(max(classes, 2), (8 + padding,), generator=generator)
    weights = (torch.arange(8 + padding) < 8).float()
    loss = raysim.Batch(logits, y, weights).loss(logits)
    expected = raysim.Batch(logits[:8], y[:8]).loss(logits[:8])
    torch.testing.assert_close(loss, expected)
    own, theirs = (torch.autograd.grad(value, logits)[0] for value in (loss, expected))
    torch.testing.assert_close(own, theirs)
    assert not own[8:].any()


class Operations(TorchDispatchMode):
    """Notes the names of operations."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("kind", "indexes"), [(raysim.Batch, True), (_Stacked, False)])
def test_the_loss_of_clients_together_indexes_nothing(kind, indexes):
    x = torch.randn(3, 8, 5, requires_grad=True)
    y = torch.arange(24).view(3, 8) % 5
    with Operations() as operations:
        losses = vmap(lambda x, y: kind(x, y).loss(x))(x, y)
        losses.sum().backward()
    assert indexes != operations.names.isdisjoint({"gather", "scatter", "scatter_add"})
    plain = [raysim.Batch(a, b).loss(a) for a, b in zip(x, y, strict=True)]
    torch.testing.assert_close(losses, torch.stack(plain))
