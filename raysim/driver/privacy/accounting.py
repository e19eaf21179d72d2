"""Accounting of a run's differential privacy, by the library dp-accounting.

    Poisson cohorts   a client is added or removed; each round is a Gaussian mechanism on a Poisson
                      sample with q = C. Mironov, Talwar and Zhang, "Renyi Differential Privacy of
                      the Sampled Gaussian Mechanism", 2019; PLD: Doroshenko et al., "Connect the
                      Dots", PoPETs 2022.
    fixed cohorts     a client is replaced by another one, which moves a sum by up to 2 C: a
                      Gaussian mechanism with half of the noise on a sample of m of K without
                      replacement. Wang, Balle and Kasiviswanathan, "Subsampled Renyi Differential
                      Privacy", AISTATS 2019.
    trees             a client's change is replaced by zeros. A client takes part once in a tree, so
                      this moves one node of each height: a Gaussian mechanism for each tree and
                      height. Kairouz et al., "Practical and Private (Deep) Learning without
                      Sampling or Shuffling", ICML 2021, appendix D.

Epsilon depends only on the number of rounds, so a resumed run has the epsilon of an uninterrupted
one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any

from raysim.api.privacy import Accountant, Draw, NoiseTree, PrivacyClaim
from raysim.config import Settings
from raysim.errors import SettingsError
from raysim.storage.summary import EPSILON, HYPOTHETICAL

DIGITS = 4
"""Decimals to which the noise for an epsilon is rounded up."""
LEAST_NOISE: Mapping[Accountant, float] = {"rdp": 1e-2, "pld": 0.1}
"""Least noise that is accounted: less noise has no useful epsilon, and takes PLD gigabytes."""
MOST_NOISE = 1e5
RELATIONS: Mapping[Draw, str] = {
    "poisson": "add or remove",
    "fixed": "replace",
    "once": "zero out",
}
"""Change between neighbouring sets of clients, by the draw of the cohorts."""


@dataclass(frozen=True)
class Cohorts:
    """Cohorts of a run, as an accountant sees them.

    Attributes:
        draw: The kind of draw.
        size: Clients of a round; for Poisson cohorts, the expected number.
        clients: K, all clients.
        tree: The trees that add noise to the sums; None if each round adds its own noise.
    """

    draw: Draw
    size: float
    clients: int
    tree: NoiseTree | None = None

    @property
    def share(self) -> float:
        """q, the probability that a client takes part in a round."""
        return self.size / self.clients

    def __str__(self) -> str:
        """Describe the cohorts in words."""
        if self.draw == "poisson":
            return f"Poisson cohorts, q={self.share:g} of {self.clients}"
        if self.tree:
            length = self.tree.length(self.clients, int(self.size))
            trees = f"{'completed ' * self.tree.completed}trees of {length} rounds"
            return f"{trees}, each client once in one, {self.size:g} of {self.clients} a round"
        return f"fixed cohorts, {self.size:g} of {self.clients}"


@dataclass(frozen=True)
class Accounting:
    """Accounting of the rounds of a run.

    Attributes:
        claim: The claim.
        cohorts: The cohorts.
        noise: Noise multiplier of each round.
    """

    claim: PrivacyClaim
    cohorts: Cohorts
    noise: float

    @property
    def column(self) -> str:
        """Column of epsilon in `metrics.parquet`."""
        return EPSILON if self.claim.population is None else HYPOTHETICAL

    @property
    def is_quick(self) -> bool:
        """True if further epsilons after the first one take no time."""
        return self.claim.accountant == "rdp"

    @property
    def relation(self) -> str:
        """Neighbouring sets of clients, in words."""
        return f"{RELATIONS[self.cohorts.draw]} one client"

    @property
    def kind(self) -> str:
        """Meaning of epsilon, in words."""
        words = f"{self.claim.accountant.upper()}, {self.relation}, delta={self.claim.delta:g}"
        if self.claim.population is None:
            return words
        return f"{words}, hypothetical: a cohort of {self.claim.cohort} of {self.claim.population}"

    def __str__(self) -> str:
        """Describe all that epsilon depends on, except the number of rounds."""
        return f"{self.kind}; {self.cohorts}, noise {self.noise!r}"

    def epsilon(self, rounds: int) -> float:
        """Return epsilon after a number of rounds."""
        if not rounds:
            return 0.0
        with _quiet():
            if self.cohorts.tree:
                return self._of_trees(self.cohorts.tree, rounds)
            return self._of_rdp(rounds) if self.is_quick else self._of_pld(rounds)

    def figures(self, rounds: int, *, due: bool) -> dict[str, float | None]:
        """Return epsilon after a number of rounds, by its column.

        Args:
            rounds: The number of rounds.
            due: Whether the round is evaluated; a slow epsilon is computed in such rounds alone.
        """
        return {self.column: self.epsilon(rounds) if due or self.is_quick else None}

    def summary(self, rounds: int) -> dict[str, float | str]:
        """Return epsilon after a number of rounds, and its meaning, for `summary.json`."""
        return {self.column: self.epsilon(rounds), "privacy": str(self)}

    def last_round(self, rounds: int) -> int:
        """Return the last of `rounds` rounds within the limit; 0 if the first one exceeds it."""
        limit = self.claim.epsilon
        if limit is None or self.epsilon(rounds) <= limit:
            return rounds
        low, high = 0, rounds
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.epsilon(middle) <= limit else (low, middle)
        return low

    @cached_property
    def _rdp(self) -> Any:
        """The accountant after one round; its divergences add up over rounds."""
        import dp_accounting
        from dp_accounting.rdp import RdpAccountant

        relation, cohorts = dp_accounting.NeighboringRelation, self.cohorts
        if cohorts.draw == "poisson":
            gaussian = dp_accounting.GaussianDpEvent(self.noise)
            event = dp_accounting.PoissonSampledDpEvent(cohorts.share, gaussian)
            accountant = RdpAccountant(neighboring_relation=relation.ADD_OR_REMOVE_ONE)
        else:
            gaussian = dp_accounting.GaussianDpEvent(self.noise / 2)  # the sensitivity is 2 C
            event = dp_accounting.SampledWithoutReplacementDpEvent(
                cohorts.clients, int(cohorts.size), gaussian
            )
            accountant = RdpAccountant(neighboring_relation=relation.REPLACE_ONE)
        return accountant.compose(event)

    def _of_rdp(self, rounds: int) -> float:
        from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

        spent = self._rdp.rdp * rounds
        return float(compute_epsilon(self._rdp.orders, spent, self.claim.delta)[0])

    def _of_trees(self, tree: NoiseTree, rounds: int) -> float:
        from dp_accounting import NeighboringRelation, SingleEpochTreeAggregationDpEvent
        from dp_accounting.rdp import RdpAccountant

        length = tree.length(self.cohorts.clients, int(self.cohorts.size))
        ended, last = divmod(rounds, length)
        whole = 1 << (length - 1).bit_length() if tree.completed else length
        accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_SPECIAL)
        for steps, times in ((whole, ended), (last, 1)):
            if steps and times:
                event = SingleEpochTreeAggregationDpEvent(self.noise, steps)
                accountant.compose(event, times)
        return float(accountant.get_epsilon(self.claim.delta))

    @cached_property
    def _pld(self) -> Any:
        """The privacy loss distribution of one round, built as the library's accountant does."""
        from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

        return from_gaussian_mechanism(
            self.noise, sampling_prob=self.cohorts.share, use_connect_dots=True
        )

    def _of_pld(self, rounds: int) -> float:
        spent = self._pld.self_compose(rounds)
        return float(spent.get_epsilon_for_delta(self.claim.delta))


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the library's warnings on orders that it leaves out; they only loosen the bound."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def with_accounted_noise(settings: Settings, accounting: Accounting | None) -> Settings:
    """Return settings in which the claiming method or stage has the accounted noise."""
    if accounting is None:
        return settings
    noise, method = accounting.noise, settings.method
    channel = {n: s.with_noise(noise) if s.privacy else s for n, s in settings.channel.items()}
    method = method.with_noise(noise) if method.privacy else method
    return settings.model_copy(update={"channel": channel, "method": method})


def accounting_of(claim: PrivacyClaim, cohorts: Cohorts, rounds: int, key: str) -> Accounting:
    """Return the accounting of a claim.

    Args:
        claim: The claim.
        cohorts: The cohorts of the run.
        rounds: Rounds of the run; without a given noise, they and epsilon determine it.
        key: Key of the settings of the claiming method or stage.

    Raises:
        SettingsError: the library is not installed, the noise is too little, or no noise stays
            within epsilon.
    """
    if find_spec("dp_accounting") is None:
        raise SettingsError(f"{key}: needs dp-accounting; pip install 'raysim-fl[privacy]'")
    if claim.population is not None and claim.cohort is not None:
        cohorts = Cohorts("poisson", claim.cohort, claim.population)
    if claim.noise is not None:
        if claim.noise < (least := LEAST_NOISE[claim.accountant]):
            raise SettingsError(
                f"{key}.noise={claim.noise:g}: must be 0, without an epsilon, or at least {least:g}"
                f" with accountant={claim.accountant}"
            )
        return Accounting(claim, cohorts, claim.noise)
    asked = Accounting(claim, cohorts, 1.0)
    account = _least_noise(replace(asked, claim=replace(claim, accountant="rdp")), rounds)
    if account and not asked.is_quick:  # the search by PLD is slower, its result a little smaller
        account = _least_noise(asked, rounds, account.noise, ratio=1.2)
    if account is None:
        raise SettingsError(
            f"{key}.epsilon={claim.epsilon:g}: no noise is enough for rounds={rounds}"
            f" ({claim.accountant.upper()}, delta={claim.delta:g}); give a larger one"
        )
    return account


def _least_noise(
    asked: Accounting, rounds: int, guess: float = 1.0, ratio: float = 2.0
) -> Accounting | None:
    """Return an accounting with the least noise, to DIGITS, within its limit; None if none is.

    Args:
        asked: The accounting, with any noise.
        rounds: The number of rounds.
        guess: Noise at which the search begins.
        ratio: Ratio of the first steps of the search.
    """
    from scipy.optimize import brentq

    limit = asked.claim.epsilon or 0.0

    @cache
    def excess(noise: float) -> float:
        return replace(asked, noise=noise).epsilon(rounds) - limit

    least = LEAST_NOISE[asked.claim.accountant]
    high = max(guess, least)
    while excess(high) > 0:
        high *= ratio
        if high > MOST_NOISE:
            return None
    low = max(high / ratio, least)
    while low > least and excess(low) <= 0:
        low, high = max(low / ratio, least), low
    unit = 10.0**-DIGITS
    noise = low if excess(low) <= 0 else float(brentq(excess, low, high, xtol=unit / 2))
    steps = math.ceil(noise / unit)
    while excess(steps * unit) > 0:
        steps += 1
    return replace(asked, noise=round(steps * unit, DIGITS))
