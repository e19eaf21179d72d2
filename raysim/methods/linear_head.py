"""Linear heads, and the classes of a client's samples that methods with one count.

Legend: n samples, B batch, C classes; one logit per sample tells two classes apart.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from raysim.api.method import Method
from raysim.api.rules import Batch
from raysim.errors import SettingsError
from raysim.numbers.tensors import Tensors

HEAD = "head"


def linear_head(method: Method, network: nn.Module) -> nn.Linear:
    """Return the layer of a network's stage `head`.

    Raises:
        SettingsError: the stage is not one fully connected layer.
    """
    head = network.get_submodule(HEAD)
    while isinstance(head, nn.Sequential) and len(head) == 1:
        head = head[0]
    if isinstance(head, nn.Linear):
        return head
    raise SettingsError(
        f"method.name={method.title}: needs a model with one nn.Linear as its stage head; this"
        f" model has {type(head).__name__}"
    )


def weight_in(tensors: Tensors, head: str = HEAD) -> Tensor:
    """Return the weight [C, F] of the one layer of a head, by the head's name."""
    return next(t for n, t in tensors.items() if n.startswith(f"{head}.") and n.endswith("weight"))


def classes_of(head: nn.Linear) -> int:
    """Return the number of classes that a head tells apart."""
    return max(head.out_features, 2)


def class_counts(samples: Batch, weight: Tensor) -> Tensor:
    """Return the number of samples of each class [C], in the dtype of a head's weight."""
    counts = torch.bincount(samples.y, minlength=max(len(weight), 2))
    return counts.to(weight.dtype)


def shifted(logits: Tensor, by: Tensor) -> Tensor:
    """Return logits [B, C] with a number for each class [C] added.

    A single logit is the second class's logit less the first's.
    """
    return logits + (by[1:] - by[:1] if logits.shape[-1] == 1 else by)
