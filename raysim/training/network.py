"""Running a network stage by stage, at its own tensors or at any others."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from raysim.core.layers import BATCH_NORMS
from raysim.core.rules import Outputs
from raysim.core.tensors import Tensors
from raysim.core.torch_private import has_hooks

STAGES = ("features", "hidden", "head")


class Network(nn.Module):
    """A user's module, run by its stages where it has them."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._owners = _owners(module)
        staged = not lacking_stages(module, STAGES)
        self._stages = [_chain(getattr(module, stage)) for stage in STAGES] if staged else None
        self.has_batchnorm = any(isinstance(m, BATCH_NORMS) for m in module.modules())
        self._layout = torch.contiguous_format
        self._trains: tuple[frozenset[str] | None] | None = None

    def placed(self, device: torch.device) -> Network:
        """Move to a device, in the memory layout in which its convolutions are fastest there.

        On a CPU channels-last takes a quarter off a step of a plain CNN and adds a fifth to one of
        ResNet-18 (`tests/benchmarks/layout.py`), whose 512 channels on maps of one pixel it slows.
        """
        convolves = any(isinstance(m, nn.Conv2d) for m in self.module.modules())
        if device.type == "cpu" and convolves and not self.has_batchnorm:
            self._layout = torch.channels_last
            return self.to(device).to(memory_format=torch.channels_last)
        return self.to(device)

    def forward(self, x: Tensor) -> Outputs:
        """Return the outputs of every stage for inputs x [B, ...]."""
        if self._stages is None:
            return Outputs(None, None, self.module(x))
        outputs = []
        for stage in self._stages:
            for layer in stage:
                x = layer(x)
            outputs.append(x)
        return Outputs(*outputs)

    def load(self, tensors: Tensors) -> None:
        """Copy tensors into the module; parameters and buffers take new shapes where given."""
        with torch.no_grad():
            for name, target in self.tensors().items():
                if target.shape != tensors[name].shape:
                    self._resize(name, tensors[name])
                else:
                    target.copy_(tensors[name])

    def tensors(self) -> dict[str, Tensor]:
        """Return the live parameters and buffers."""
        return {name: getattr(module, key) for name, module, key in self._owners}

    def trained(self, trainable: frozenset[str] | None) -> list[str]:
        """Return the names of the parameters that are trained: of all, or of those given."""
        return [
            name
            for name, tensor in self.tensors().items()
            if tensor.requires_grad and (trainable is None or name in trainable)
        ]

    def train(self, mode: bool = True) -> Network:
        """Enter training mode with all modules, or evaluation mode."""
        self._trains = None
        return super().train(mode)

    def train_only(self, trainable: frozenset[str] | None) -> None:
        """Enter training mode; modules whose own parameters are all frozen stay in evaluation."""
        if self._trains == (trainable,):
            return  # it saves a walk through all modules for every client
        self.train()
        self._trains = (trainable,)
        if trainable is None:
            return
        for prefix, module in self.module.named_modules():
            own = {f"{prefix}.{n}".lstrip(".") for n, _ in module.named_parameters(recurse=False)}
            # Not recurrent modules: cuDNN has no backward pass for them in evaluation mode.
            if own and not own & trainable and not isinstance(module, nn.RNNBase):
                module.eval()

    def at(self, tensors: Tensors, x: Tensor) -> Outputs:
        """Return the outputs at any tensors, in this module's present mode."""
        named = {f"module.{name}": tensor for name, tensor in tensors.items()}
        return functional_call(self, named, (x,))  # type: ignore[no-any-return]

    def frozen(self) -> Network:
        """Return a copy in evaluation mode."""
        return Network(copy.deepcopy(self.module)).eval()

    def _resize(self, name: str, tensor: Tensor) -> None:
        path, _, attribute = name.rpartition(".")
        owner = self.module.get_submodule(path)
        before = getattr(owner, attribute)
        layout = self._layout if tensor.dim() == 4 else torch.contiguous_format
        new = tensor.clone(memory_format=layout)
        if isinstance(before, nn.Parameter):
            new = nn.Parameter(new, requires_grad=before.requires_grad)
        setattr(owner, attribute, new)


def _chain(module: nn.Module) -> list[Callable[[Tensor], Tensor]]:
    """Return the functions that a module applies in turn.

    Of a small network's step 6% were the wrappers of nested modules' calls, which do nothing for
    modules without hooks.
    """
    if type(module) is nn.Sequential and not has_hooks(module):
        return [function for child in module for function in _chain(child)]
    return [module if has_hooks(module) else module.forward]


def _owners(module: nn.Module) -> list[tuple[str, nn.Module, str]]:
    """Return the name of each parameter and buffer, the module that owns it, and its attribute."""
    named = [n for n, _ in module.named_parameters()] + [n for n, _ in module.named_buffers()]
    paths = [(name, *name.rpartition(".")) for name in named]
    return [(name, module.get_submodule(path), key) for name, path, _, key in paths]


def lacking_stages(module: nn.Module, needed: Iterable[str]) -> list[str]:
    """Return the stages that a method needs and a module does not have."""
    return [s for s in needed if not isinstance(getattr(module, s, None), nn.Module)]
