"""Helpers of the tests of methods under which clients deploy models of their own."""

from __future__ import annotations

import numpy as np

from tests.methods.common import outputs

DEPLOYED_LOSS = "personal_train_set_loss"
"""Column of the loss on the training samples of all clients, each with the model it deploys."""
EVALUATED = {"evaluation.train_set": True}
SHORT = {**EVALUATED, "rounds": 3}
"""Rounds in which clients take part again."""


def loss_of(w, x, y):
    """The sum of the cross-entropies of samples at T=1."""
    logits = outputs(w, x)[1]
    highest = logits.max(1)
    total = highest + np.log(np.exp(logits - highest[:, None]).sum(1))
    return (total - logits[np.arange(len(y)), y]).sum()


def deployed_loss(clients, model_of):
    """The loss that DEPLOYED_LOSS should have, given the weights that each client deploys."""
    sums = [loss_of(model_of(k), x, y) for k, (x, y) in enumerate(clients)]
    return sum(sums) / sum(len(y) for _, y in clients)


def moved(w, direction, scale):
    return [p + scale * d for p, d in zip(w, direction, strict=True)]


def mixed(first, second, share):
    """`share` of the first weights and the rest of the second."""
    return [share * a + (1 - share) * b for a, b in zip(first, second, strict=True)]
