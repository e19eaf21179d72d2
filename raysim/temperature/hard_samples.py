"""A temperature by sample: a lower one on the samples that are hard to learn.

Source: FLex&Chill (Lee, Kim and Ko, 2024), section 5, "Dynamic per-sample temperature scaling":
lower temperatures for the samples that are harder to learn, higher ones for those easier to
understand. The paper gives neither a measure nor a formula and has no experiment of it. Chosen
here: a sample is hard while the network classifies it wrongly, the split of figure 1.

    T_n = hard_temperature if the predicted class is not y_n, else the client's T
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from raysim.api.rules import Batch, Outputs, View
from raysim.api.temperature import Temperature, TemperatureRound


class HardSamples(Temperature):
    """A lower temperature on samples that are classified wrongly, `local.temperature` on others.

    The loss is evaluated at `local.temperature`. Costs a prediction a step.
    """

    hard_temperature: float = Field(
        default=0.25, gt=0, description="T of samples that are classified wrongly"
    )

    def choose(self, round_: TemperatureRound) -> float:
        """Return `local.temperature`."""
        return round_.temperature

    def of_samples(self, view: View, outputs: Outputs, batch: Batch) -> Tensor:
        """Return the T of each sample [B]."""
        wrong = batch.scoring.predict(outputs.logits) != batch.y
        ones = torch.ones(len(batch.y), dtype=outputs.logits.dtype, device=batch.y.device)
        return torch.where(wrong, ones * self.hard_temperature, ones * view.temperature)
