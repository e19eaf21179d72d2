"""Optimizers of local steps, one file each.

In: the gradient of a parameter, and its slots. Out: the direction of the step.
Imported by `raysim.config`; imports `api` and below.
"""

from raysim.api.optimizer import OPTIMIZERS, Optimizer

OPTIMIZERS.add(
    {
        "adagrad": "raysim.optimizers.adagrad:Adagrad",
        "adam": "raysim.optimizers.adam:Adam",
        "adamw": "raysim.optimizers.adamw:AdamW",
        "rmsprop": "raysim.optimizers.rmsprop:RmsProp",
        "sgd": "raysim.optimizers.sgd:Sgd",
    }
)

__all__ = ["OPTIMIZERS", "Optimizer"]
