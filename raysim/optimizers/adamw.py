"""AdamW, as torch.optim.AdamW: Adam with decoupled weight decay.

Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.
"""

from __future__ import annotations

from typing import ClassVar

from raysim.optimizers.adam import Adam


class AdamW(Adam):
    """Adam with decoupled weight decay: it shrinks the parameters by lr * weight_decay."""

    decoupled: ClassVar[bool] = True
