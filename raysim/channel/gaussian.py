"""Differential privacy of clients: a bound on each client's change, and noise on the sum.

Sources: McMahan, Ramage, Talwar and Zhang, "Learning Differentially Private Recurrent Language
Models", ICLR 2018, flat clipping and the estimator with a fixed denominator; Andrew, Thakkar,
McMahan and Ramaswamy, "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021.

    client:  d_k <- v_k * d_k * min(1, C / ||d_k||)      v_k = 1, or min(n_k / full_weight, 1)
    server:  mean <- (sum_k d_k + N(0, z^2 C^2 I)) / M   M clients expected in a round

The norm is taken over all differences together. With a `quantile` gamma, C follows it by b_k, which
tells whether a client is within C:

    b <- 1/2 + (sum_k (b_k - 1/2) + N(0, s_b^2)) / M      C <- C * exp(-quantile_rate * (b - gamma))

The update then has z_d = (z^-2 - (2 s_b)^-2)^(-1/2) of the accounted noise z.

M is the divisor of `aggregation.weighting=fixed`, in any cohort, so that a client moves a result by
no more than its own part. The paper encodes b_k as 0 or 1 and subtracts 1/2, as TensorFlow
Federated does; encoded as -1 or 1, as pfl-research has it, the same noise is 2 s_b.

With `noise_cohort` M_n and `population`, the mean has the noise of rounds with M_n expected clients
of a hypothetical population, z * C / M_n, and its epsilon is hypothetical.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from raysim.api.channel import Received, Stage
from raysim.api.columns import Column
from raysim.api.components import called
from raysim.api.privacy import Accountant, PrivacyClaim, multiplier_of
from raysim.api.rules import Reduced, Upload, View
from raysim.api.state import State
from raysim.errors import SettingsError
from raysim.numbers.encoding import Encoding
from raysim.numbers.tensors import (
    Groups,
    Layout,
    clip_factor,
    flatten,
    norm,
    standard_normal,
    unflatten,
)
from raysim.user_input.limits import MOST

Positive = Annotated[float, Field(gt=0)]
Clients = Annotated[int, Field(ge=1, le=MOST)]
WITHIN = "within_clip"
"""Number of a client: whether its differences are within the clip."""


class Gaussian(Stage):
    """Clipped updates with Gaussian noise on their mean: differential privacy of clients.

    Simulates a server that clients trust to add the noise, and accounts it round by round. Costs a
    pass over each upload and a draw for each coordinate, and accuracy, which drops as cohorts
    shrink. `norm_to_clip` of a client in the tables is the norm of its differences.
    """

    columns: ClassVar[Sequence[Column]] = (Column("clip"),)

    clip: Positive | None = Field(
        default=1.0, description="largest Euclidean norm C of the differences; none: no limit"
    )
    noise: Annotated[float, Field(ge=0)] | None = Field(
        default=None,
        description="noise multiplier z: deviation of the sum's noise over the clip; none: the"
        " least for epsilon, or 1 without one",
    )
    epsilon: Positive | None = Field(
        default=None, description="largest epsilon: the run ends before a round that exceeds it"
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="delta of epsilon, at most 1/K")
    accountant: Accountant = Field(
        default="rdp",
        description="rdp: Renyi divergences, of every round; pld: privacy loss distributions, which"
        " are tighter and slower, of evaluated rounds, with selection.name=poisson",
    )
    full_weight: Clients | None = Field(
        default=None,
        description="samples at which a client's weight reaches 1, in proportion below; none: all"
        " have weight 1",
    )
    quantile: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None,
        description="share of clients within the clip, which the clip follows; none: a fixed clip",
    )
    quantile_rate: Positive = Field(default=0.2, description="rate of the clip along the quantile")
    quantile_noise: Positive | None = Field(
        default=None,
        description="deviation of the noise of the number of clients within; none: M/20",
    )
    noise_cohort: Clients | None = Field(
        default=None,
        description="expected clients of a round of a hypothetical population; the mean has the"
        " noise of such rounds; none: of the run's",
    )
    population: Clients | None = Field(
        default=None, description="clients of the hypothetical population; with noise_cohort"
    )
    bounds_norm: ClassVar[bool] = True  # differences are scaled down or left
    sums_numbers: ClassVar[bool] = True  # the clip follows the number of clients within it

    @model_validator(mode="after")
    def _noise_has_a_scale(self) -> Self:
        if self.multiplier != 0 and self.clip is None:
            raise ValueError("clip=none: needs channel.gaussian.noise=0, without epsilon")
        if self.clip is None and self.quantile is not None:
            raise ValueError("clip=none: needs channel.gaussian.quantile=none")
        return self

    @model_validator(mode="after")
    def _population_is_whole(self) -> Self:
        if (self.population is None) != (self.noise_cohort is None):
            raise ValueError(
                f"population={self.population or 'none'}: goes with noise_cohort; give both or none"
            )
        if self.population and self.noise_cohort and self.noise_cohort > self.population:
            raise ValueError(
                f"noise_cohort={self.noise_cohort}: must be at most population={self.population}"
            )
        return self

    @property
    def multiplier(self) -> float | None:
        """Noise multiplier z; None if it follows from epsilon."""
        return multiplier_of(self.noise, self.epsilon)

    @property
    def acts_on_empty_rounds(self) -> bool:  # type: ignore[override]  # a constant of other stages
        """True with noise, or a quantile: a round without clients is one like others."""
        return self.multiplier != 0 or self.quantile is not None

    @property
    def privacy(self) -> PrivacyClaim | None:
        """The claim of its settings; None without noise."""
        if self.multiplier == 0:
            return None
        return PrivacyClaim(
            noise=self.multiplier,
            epsilon=self.epsilon,
            delta=self.delta,
            accountant=self.accountant,
            cohort=self.noise_cohort,
            population=self.population,
        )

    def with_noise(self, noise: float) -> Stage:
        """Return this stage with a noise multiplier."""
        return self.model_copy(update={"noise": noise})

    def has_effect(self, behind: Sequence[Stage]) -> bool:
        """Return whether it clips, weighs or adds noise."""
        return self.clip is not None or self.full_weight is not None

    def init(self) -> State:
        """Return the first clip, if it follows a quantile."""
        return {} if self.quantile is None else {"clip": np.array(self.clip, dtype=np.float64)}

    def at(self, state: State) -> Stage:
        """Return this stage with the clip of a round."""
        return self.model_copy(update={"clip": float(state["clip"])}) if state else self

    def send(self, view: View, upload: Upload) -> Upload:
        """Scale the differences to the clip where they exceed it, and by the client's weight."""
        length, limit = norm(flatten(upload.sums)), self.clip
        factor = 1.0 if limit is None else clip_factor(length, limit)
        if self.full_weight is not None:
            factor *= min(upload.samples / self.full_weight, 1.0)
        sent = replace(upload, metrics={"norm_to_clip": length})
        if self.quantile is not None:
            sent = replace(sent, scalars={WITHIN: float(limit is None or length <= limit)})
        if factor == 1:
            return sent
        return replace(
            sent,
            sums={
                g: {n: d * factor for n, d in tensors.items()} for g, tensors in upload.sums.items()
            },
        )

    def encoded(self, sent: Encoding, layout: Layout, client: int) -> Encoding:
        """Return the encoding with the number that tells whether the client is within the clip."""
        if self.quantile is None:
            return sent
        return replace(sent, numbers=sent.numbers + 1)

    def receive(self, received: Received, reduced: Reduced) -> Reduced:
        """Add noise to the mean."""
        if not self.multiplier or self.clip is None:
            return reduced
        deviation = self._of_update(received) * self.clip / self._clients(received)
        return replace(
            reduced, means=with_noise(reduced.means, deviation, received.generator("noise"))
        )

    def update(self, received: Received, reduced: Reduced) -> tuple[State, Mapping[str, float]]:
        """Move the clip to the quantile; the metric `clip` is the clip of the round."""
        if self.quantile is None or self.clip is None:
            return {}, {}
        within = reduced.scalars.get(WITHIN, np.empty(0))
        share = 0.5 + float((within - 0.5).sum()) / received.expected
        if self.multiplier:
            drawn = torch.randn((), generator=received.generator("quantile"), dtype=torch.float64)
            share += self._of_quantile(received) / self._clients(received) * float(drawn)
        moved = self.clip * math.exp(-self.quantile_rate * (share - self.quantile))
        return {"clip": np.array(moved, dtype=np.float64)}, {"clip": self.clip}

    def _clients(self, received: Received) -> float:
        """Return M, the expected clients of a round: of the run, or of its hypothetical rounds."""
        return float(self.noise_cohort or received.expected)

    def _of_quantile(self, received: Received) -> float:
        """Return s_b, the deviation of the noise of the number of clients within the clip."""
        return self.quantile_noise or self._clients(received) / 20

    def _of_update(self, received: Received) -> float:
        """Return the noise multiplier of the update, z or z_d.

        Raises:
            SettingsError: the number of clients within the clip alone has less noise than z.
        """
        noise = self.multiplier or 0.0
        if self.quantile is None:
            return noise
        counts = 2 * self._of_quantile(received)
        if noise >= counts:
            raise SettingsError(
                f"{called(self)}.noise={noise:g}: must be below {counts:g}, twice the deviation of"
                f" the noise of the clients within the clip; raise {called(self)}.quantile_noise"
            )
        return float((noise**-2 - counts**-2) ** -0.5)


def with_noise(groups: Groups, deviation: float, generator: torch.Generator) -> Groups:
    """Return tensors with independent Gaussian noise, one draw over all, in the order of names."""
    tensors = dict(sorted(flatten(groups).items()))
    sizes = [tensor.numel() for tensor in tensors.values()]
    drawn = standard_normal(sum(sizes), generator)
    parts = torch.split_with_sizes(drawn, sizes)
    noisy: dict[str, Tensor] = {
        name: torch.add(tensor, part.view(tensor.shape), alpha=deviation)
        for (name, tensor), part in zip(tensors.items(), parts, strict=True)
    }
    return unflatten(noisy)
