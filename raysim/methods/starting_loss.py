"""Loss of a client's samples where it starts, for methods that weigh clients by it."""

from __future__ import annotations

from raysim.core.rules import Trained, Upload, View
from raysim.core.tensors import at_least_float32
from raysim.methods.mifl import logits_of

LOSS = "start_loss"
"""Name of the loss at the tensors with which a client starts."""


def starting_loss(view: View, trained: Trained) -> float:
    """Return F_k: the mean loss that is minimised, of all samples where the client started.

    It is taken in evaluation mode, at the client's temperature, without penalties or weight decay.
    """
    logits = at_least_float32(logits_of(view, view.start, trained.data))
    return float(trained.data.loss(logits / view.temperature))


def send_loss(view: View, trained: Trained) -> Upload:
    """Send the loss alone."""
    return Upload(scalars={LOSS: starting_loss(view, trained)})
