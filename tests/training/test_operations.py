"""Operations that steps are recorded of: the same bits for tensors with and without gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from raysim.numbers.tensors.torch_private import foreach_add, foreach_add_, watch_operations
from raysim.training.operations import TESTED

UNDEFINED = ("aten::empty", "aten::new_empty", "aten::empty_like")
"""Operations that return memory as it is."""
WORKSPACE = {"aten::mkldnn_rnn_layer": 3}
"""Result of an operation that is memory as it is, from this one on."""


def rows(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(len(shape)).normal(size=shape)).float()


def image_net(*layers: nn.Module) -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(*layers), (2, 6, 6)


def activation(kind: Callable[[], nn.Module]) -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(nn.Linear(6, 8), kind(), nn.Linear(8, 3)), (6,)


class Words(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(5, 4), layer

    def forward(self, x: Tensor) -> Tensor:
        x = self.words((x.abs() * 2).long().clamp(max=4))
        out = self.layer(x)
        return (out[0] if isinstance(out, tuple) else out).mean(1)


class Own(nn.Module):
    """Applies a function to a linear layer's outputs."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(6, 8), nn.Linear(8, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x, x)[0]


ACTIVATIONS: Sequence[Callable[[], nn.Module]] = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU),
    *(nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid),
    *(nn.LogSigmoid, nn.Softsign, nn.Identity, nn.Dropout, nn.AlphaDropout),
    *(lambda: nn.Softmax(-1), lambda: nn.LogSoftmax(-1)),
    *(lambda: nn.LayerNorm(8), lambda: nn.GroupNorm(2, 8), lambda: nn.RMSNorm(8)),
    *(lambda: nn.BatchNorm1d(8), lambda: nn.ReLU(inplace=True)),
)
IMAGES = (
    lambda: (nn.Conv2d(2, 3, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)),
    lambda: (nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), nn.BatchNorm2d(4), nn.ReLU()),
    lambda: (nn.Conv2d(2, 3, 3, dilation=2), nn.AvgPool2d(2), nn.Flatten()),
    lambda: (nn.Conv2d(2, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    lambda: (nn.Conv2d(2, 3, 1), nn.AdaptiveMaxPool2d(2), nn.Flatten()),
    lambda: (nn.ConvTranspose2d(2, 2, 2), nn.InstanceNorm2d(2, affine=True), nn.Dropout2d()),
    lambda: (nn.Upsample(scale_factor=2), nn.LocalResponseNorm(2), nn.ZeroPad2d(1)),
    lambda: (nn.Conv2d(2, 2, 3, padding_mode="reflect", padding=1), nn.PixelShuffle(1)),
    lambda: (nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(2, 2, 3)),
    lambda: (nn.Flatten(2), nn.Conv1d(2, 3, 3), nn.MaxPool1d(2), nn.AvgPool1d(2), nn.Flatten()),
    lambda: (nn.Flatten(2), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2, 3)),
    lambda: (nn.Unflatten(1, (1, 2)), nn.Conv3d(1, 2, (1, 3, 3)), nn.BatchNorm3d(2)),
)
SEQUENCES = (
    *(lambda: nn.LSTM(4, 5, 2, batch_first=True), lambda: nn.GRU(4, 5, batch_first=True)),
    *(lambda: nn.RNN(4, 5, batch_first=True), Attention),
    lambda: nn.LSTM(4, 5, batch_first=True, bidirectional=True, dropout=0.0),
    lambda: nn.TransformerEncoderLayer(4, 2, 6, batch_first=True),
)
FUNCTIONS: Sequence[Callable[[Tensor], Tensor]] = (
    torch.exp,
    torch.log1p,
    torch.sin,
    torch.cos,
    torch.abs,
    torch.square,
    torch.sign,
    torch.erf,
    F.normalize,
    lambda x: x.abs().sqrt(),
    lambda x: (x.abs() + 1).rsqrt(),
    lambda x: (x.abs() + 1).log(),
    lambda x: x**2,
    lambda x: x**3,
    lambda x: 2**x,
    lambda x: x.abs() ** 1.5,
    lambda x: -x,
    lambda x: x / (x.norm(dim=1, keepdim=True) + 1),
    lambda x: 1 / (x + 9),
    lambda x: x - x.mean(1, keepdim=True),
    lambda x: x / x.std(1, keepdim=True),
    lambda x: x.var(1, keepdim=True) + x,
    lambda x: x * x.softmax(1),
    lambda x: x.cumsum(1),
    lambda x: x.clamp(-1, 1),
    lambda x: x.clamp(min=0),
    lambda x: torch.where(x > 0, x, 0.1 * x),
    lambda x: torch.maximum(x, x * 2),
    lambda x: torch.minimum(x, x * 2),
    lambda x: x.max(1)[0][:, None] + x,
    lambda x: x.amax(1, keepdim=True) + x,
    lambda x: x.amin(1, keepdim=True) + x,
    lambda x: x.logsumexp(1, keepdim=True) + x,
    lambda x: x.sort(1).values,
    lambda x: x.flip(1),
    lambda x: torch.cat([x[:, :4], x[:, 4:] * 2], 1),
    lambda x: x.roll(1, 1),
    lambda x: torch.stack([x, x], 1).sum(1),
    lambda x: x.repeat(1, 2)[:, :8],
    lambda x: x.tile(2)[:, :8],
    lambda x: x.chunk(2, 1)[0].repeat(1, 2),
    lambda x: x.split(4, 1)[1].repeat(1, 2),
    lambda x: x.unsqueeze(1).expand(-1, 2, -1).mean(1),
    lambda x: x.permute(1, 0).t().contiguous(),
    lambda x: torch.einsum("bi,bj->bij", x, x).mean(2),
    lambda x: torch.bmm(x[:, :, None], x[:, None]).sum(2),
    lambda x: torch.outer(x.mean(1), x.mean(0)),
    lambda x: x @ x.t() @ x,
    lambda x: torch.cdist(x, x).detach() @ x,
    lambda x: x.masked_fill(x > 0, 0),
    lambda x: x.gather(1, x.argsort(1)),
    lambda x: x.triu() + x.tril(),
    lambda x: x.index_select(1, torch.arange(8)),
    lambda x: F.pad(x, (1, 1))[:, 1:-1],
    lambda x: x.prod(1, keepdim=True) + x,
    lambda x: F.cosine_similarity(x, x.flip(1))[:, None] + x,
    lambda x: x.float().double().float(),
    lambda x: x.reshape(-1, 2, 4).transpose(1, 2).flatten(1),
    lambda x: x.clone().add_(1).mul_(2),
    lambda x: torch.addcmul(x, x, x),
    lambda x: torch.lerp(x, x.flip(1), 0.3),
    lambda x: x.tanh().atanh(),
    lambda x: x.round().detach() + x.floor().detach() + x,
    lambda x: torch.full_like(x, 2.0) * x,
    lambda x: x.sum() * x,
    lambda x: x + torch.rand_like(x),
    lambda x: x + torch.randn_like(x),
    lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
    lambda x: x.detach() * 2 + x,
    lambda x: (x > 0).float() * x,
    lambda x: x * torch.ones(8) + torch.zeros(8),
    lambda x: F.one_hot(x.argmax(1), 8) * x,
    lambda x: x.expm1(),
    lambda x: x.std() * x,
    lambda x: F.dropout(x, 0.3),
    lambda x: x[:, torch.tensor([1, 0, 2, 3, 4, 5, 6, 7])],
    lambda x: torch.linalg.vector_norm(x, dim=1)[:, None] * x,
    lambda x: x.narrow(1, 0, 8).select(1, 0)[:, None] + x,
    lambda x: torch.hypot(x, x),
    lambda x: x.mean() + x.min() + x.max() + x,
    lambda x: (x != 0).float() * x + (x <= 0).float(),
    lambda x: x * (x > 0).any().float(),
    lambda x: x * torch.dot(x[:, 0], x[:, 1]),
    lambda x: torch.mv(x, x[0])[:, None] * x,
    lambda x: x * torch.logspace(0, 1, 8),
    lambda x: x.new_full((8,), 2.0) * x,
    lambda x: torch.rsub(x, 1),
    lambda x: torch.zeros_like(x).copy_(x),
)
LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": F.cross_entropy,
    "smoothed": lambda o, y: F.cross_entropy(o, y, label_smoothing=0.1),
    "squared": lambda o, y: (o - y[:, None]).square().mean(),
    "mse": lambda o, y: F.mse_loss(o[:, 0], y.float()),
    "l1": lambda o, y: F.l1_loss(o[:, 0], y.float()),
    "huber": lambda o, y: F.smooth_l1_loss(o[:, 0], y.float()) + F.huber_loss(o[:, 0], y.float()),
    "binary": lambda o, y: F.binary_cross_entropy_with_logits(o[:, 0], (y > 0).float()),
    "nll": lambda o, y: F.nll_loss(o.log_softmax(1), y),
    "divergence": lambda o, y: F.kl_div(
        o.log_softmax(1), o.detach().softmax(1), reduction="batchmean"
    ),
    "of a class": lambda o, y: -o.log_softmax(1).masked_fill(F.one_hot(y, 3) == 0, 0).mean(),
    "probabilities": lambda o, y: F.binary_cross_entropy(o[:, 0].sigmoid(), (y > 0).float()),
    "margin": F.multi_margin_loss,
}


def modules() -> list[tuple[nn.Module, tuple[int, ...]]]:
    found = [activation(each) for each in ACTIVATIONS]
    found += [image_net(*layers(), nn.Flatten()) for layers in IMAGES]
    found += [(Words(layer()), (5,)) for layer in SEQUENCES]
    return [*found, *((Own(function), (6,)) for function in FUNCTIONS)]


class BothModes:
    """Runs every operation it sees in both modes, on tensors with and without gradient."""

    def __init__(self) -> None:
        self.same: dict[str, bool] = {}
        self._runs = False

    def __call__(self, function: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> None:
        name = function.name().partition(".")[0]
        if self._runs or name.startswith(UNDEFINED):
            self.same.setdefault(name, True)
            return
        self._runs = True
        rng, before = torch.get_rng_state(), torch.is_grad_enabled()
        found = []
        for mode in (True, False):
            own = []
            for with_gradient in (True, False):
                torch.set_rng_state(rng)
                torch.set_grad_enabled(mode)
                copied = partial(_copy, with_gradient=with_gradient)
                given = tree_map(copied, (args, dict(kwargs)))
                result = function(*given[0], **given[1])
                result = result[: WORKSPACE[name]] if name in WORKSPACE else result
                own.append([*_flat(result), *_flat(given)])
            found.append(own)
        torch.set_rng_state(rng)
        torch.set_grad_enabled(before)
        same = all(all(map(_same, *own)) for own in found)
        self.same[name] = self.same.get(name, True) and same
        self._runs = False


def _copy(value: Any, with_gradient: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    copied = value.detach().clone(memory_format=torch.preserve_format)
    return copied.requires_grad_(with_gradient and copied.is_floating_point())


def _flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value.detach()]
    if isinstance(value, dict):
        value = [*value.values()]
    return [t for each in value for t in _flat(each)] if isinstance(value, list | tuple) else []


def _same(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)


def steps() -> Iterator[Callable[[], object]]:
    """Yield forward passes with and without gradient, with their backward passes."""
    for module, shape in modules():
        has_norm = any(isinstance(each, nn.BatchNorm1d) for each in module.modules())
        for count in (5, 2 if has_norm else 1):
            yield partial(forward, module.eval(), rows(count, *shape))
            yield partial(backward, module, rows(count, *shape), F.cross_entropy)
    for loss in LOSSES.values():
        yield partial(backward, nn.Linear(6, 3), rows(5, 6), loss)
    own = [rows(3, 2), rows(4)]
    yield partial(foreach_add, own, own, 0.5)
    yield partial(foreach_add_, own, own, 0.5)


@torch.no_grad()
def forward(module: nn.Module, x: Tensor) -> None:
    module(x)


def backward(module: nn.Module, x: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    outputs = module.train()(x).flatten(1)
    value = loss(outputs, torch.arange(len(x)) % 3)
    parameters = [*module.parameters()]
    if parameters:
        torch.autograd.grad(value, parameters, allow_unused=True)


def test_recorded_operations_have_the_same_bits_with_and_without_gradient():
    """A script runs them on tensors without, in the mode in which the step did."""
    torch.manual_seed(0)
    seen = BothModes()
    for step in steps():
        with watch_operations(seen):
            step()
    assert not [name for name, same in seen.same.items() if not same and name in TESTED]
    assert sorted(TESTED - seen.same.keys()) == []
