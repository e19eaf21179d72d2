"""Checks of a model before a run starts: its parameters, their dtypes, and copying."""

from __future__ import annotations

import copy

import torch
from torch import nn

from raysim.api.components import called
from raysim.api.method import Method
from raysim.errors import SettingsError
from raysim.numbers.tensors.torch_private import forward_pre_hooks, is_script

TYPES = (torch.float32, torch.float64, torch.complex64)
"""Allowed types of trained parameters; autocast computes in half precision."""
HALF = (torch.bfloat16, torch.float16)
"""Further types of frozen parameters."""
OLD_NORMS = {
    "torch.nn.utils.weight_norm": "weight_norm",
    "torch.nn.utils.spectral_norm": "spectral_norm",
}
"""Modules of hooks that assign computed tensors as attributes, with their replacements."""


def check_model(model: nn.Module, method: Method, precision: str) -> None:
    """Check that a model can be trained and copied.

    Raises:
        SettingsError: the model cannot be trained or copied.
    """
    if is_script(model):
        raise SettingsError(
            "the model is a script of TorchScript, whose parts cannot be reached: give the module"
            " that was scripted"
        )
    _check_norms(model)
    parameters = dict(model.named_parameters())
    if not parameters:
        raise SettingsError("the model has no parameters: there is nothing to train")
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise SettingsError(
            f"the model's parameters are all frozen ({next(iter(parameters))}, ...): at least one"
            " must have requires_grad=True"
        )
    allowed = ", ".join(map(_name, TYPES))
    for name, tensor in (*parameters.items(), *model.named_buffers()):
        is_frozen = name in parameters and not tensor.requires_grad
        types = (*TYPES, *HALF) if is_frozen else TYPES
        if (name in parameters and tensor.dtype not in types) or tensor.dtype == torch.complex128:
            advice = ""
            if tensor.dtype in HALF:
                advice = "; float32 with engine.precision=bf16 computes in half precision"
            kind = "parameter" if name in parameters else "buffer"
            raise SettingsError(
                f"the model's {kind} {name} is {_name(tensor.dtype)}: must be {allowed}{advice}"
            )
        if precision == "bf16" and tensor.dtype == torch.float64:
            raise SettingsError(
                f"engine.precision=bf16: the model's {name} is float64, which autocast does not"
                " change; use engine.precision=fp32, or a model in float32"
            )
    if method.real and (complex_one := complex_parameter(model)):
        raise SettingsError(
            f"{called(method)}: needs a model of real parameters; {complex_one} is complex"
        )
    try:
        copy.deepcopy(model)
    except Exception as error:  # a user's module may raise anything
        cause = " ".join(str(error).split()) or repr(error)
        raise SettingsError(f"the model cannot be copied by copy.deepcopy: {cause}") from error


def complex_parameter(model: nn.Module) -> str | None:
    """Return the name of the first complex parameter; None if all are real."""
    return next((name for name, p in model.named_parameters() if p.is_complex()), None)


def _check_norms(model: nn.Module) -> None:
    for path, module in model.named_modules():
        for hook in forward_pre_hooks(module):
            if norm := OLD_NORMS.get(type(hook).__module__):
                raise SettingsError(
                    f"the model's module {path or type(module).__name__} has"
                    f" torch.nn.utils.{norm}, which cannot be copied: use"
                    f" torch.nn.utils.parametrizations.{norm}"
                )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
