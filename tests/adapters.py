"""Networks with adapters as peft's, for tests that need no peft."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

import raysim
from raysim.api.method import METHODS
from raysim.methods.adapted import Adapted

RANK, ALPHA = 4, 6.0


class Transposed(nn.Module):
    """A linear layer whose weight is [in, out], as GPT-2's Conv1D."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().T.clone())
        self.bias = nn.Parameter(linear.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class LoraLinear(nn.Module):
    """A frozen linear layer with adapters, of the attributes and the forward pass of peft's."""

    def __init__(
        self, linear: nn.Linear, rank: int = RANK, transposed: bool = False, root: bool = False
    ) -> None:
        super().__init__()
        layer = Transposed(linear) if transposed else linear
        self.base_layer: nn.Module = layer.requires_grad_(False)
        self.fan_in_fan_out = transposed
        a = nn.Linear(linear.in_features, rank, bias=False)
        nn.init.kaiming_uniform_(a.weight, a=math.sqrt(5))
        b = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(b.weight)
        self.lora_A, self.lora_B = nn.ModuleDict({"default": a}), nn.ModuleDict({"default": b})
        self.lora_dropout = nn.ModuleDict({"default": nn.Identity()})
        self.use_rslora = {"default": root}
        self.scaling = {"default": ALPHA / (rank**0.5 if root else rank)}
        self.active_adapters = ["default"]

    def set_adapter(self, names: list[str]) -> None:
        self.active_adapters = names
        for part in (self.lora_A, self.lora_B):
            for name, module in part.items():
                module.requires_grad_(name in names)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.base_layer(x)
        for name in self.active_adapters:
            inner = self.lora_A[name](self.lora_dropout[name](x))
            result = result + self.lora_B[name](inner) * self.scaling[name]
        return result


def adapted(
    build: Callable[[], nn.Module],
    rank: int = RANK,
    transposed: bool = False,
    root: bool = False,
) -> nn.Module:
    """Return a network of which all is frozen but its head, and adapters of its linear layers.

    A network without linear layers below the head has an adapter at the head.
    """
    network = build()
    modules = [(n, m) for n, m in network.named_modules() if isinstance(m, nn.Linear)]
    linear = {name: module for name, module in modules if module.weight.requires_grad}
    below = {name: module for name, module in linear.items() if not name.startswith("head")}
    network.requires_grad_(False)
    if below:
        network.get_submodule("head").requires_grad_()
    for path, module in (below or linear).items():
        parent, _, name = path.rpartition(".")
        setattr(network.get_submodule(parent), name, LoraLinear(module, rank, transposed, root))
    return network


def model_for(method: str, build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return what builds a network for a method: with adapters if it needs them."""
    needs = method in METHODS and issubclass(METHODS.get(method), Adapted)
    return partial(adapted, build) if needs else build


def task_for(method: str, task: raysim.Task) -> raysim.Task:
    """Return a task with a network for a method: with adapters if it needs them."""
    return replace(task, model=model_for(method, task.model))
