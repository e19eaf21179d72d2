"""Samplers, pruners and objectives of a study, with Optuna's options."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from optuna.pruners import (
    BasePruner,
    HyperbandPruner,
    MedianPruner,
    NopPruner,
    PercentilePruner,
    SuccessiveHalvingPruner,
)
from optuna.samplers import (
    BaseSampler,
    GPSampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)

import raysim
from raysim.api.columns import Column
from raysim.api.components import suggest
from raysim.errors import SettingsError, visible
from raysim.numbers.seeds import torch_seed
from raysim.tuning.studies.ranges import Range
from raysim.tuning.studies.stateless import CmaEs, NSGAIISampler, QuasiMonteCarlo

LEAST = {
    "max_resource": 1,
    "min_resource": 1,
    "n_ei_candidates": 1,
    "popsize": 4,
    "reduction_factor": 2,
}
"""Least values of numeric options, if not 0."""
DEPRECATED = {"sigma0", "restart_strategy", "inc_popsize"}
"""Options of CMA-ES that Optuna ignores, or will."""
KINDS: Mapping[str, Any] = {
    "int": int,
    "float": (int, float),
    "str": str,
    "bool": bool,
    "None": type(None),
}
"""Types of possible options in a file, by Optuna's annotation."""


def check_options(
    kind: str, name: str, options: Mapping[str, Any], known: type[Any] | None
) -> None:
    """Validate names, types and limits of options, which Optuna does not do for all.

    Args:
        kind: "sampler" or "pruner".
        name: Name of the sampler or pruner.
        options: Values by name.
        known: Optuna's class; None has no options.

    Raises:
        SettingsError: an option is unknown, or has a wrong value.
    """
    allowed = _parameters(known) if known else {}
    for key, value in options.items():
        if key not in allowed:
            hint = suggest(key, sorted(allowed)) if allowed else "it has none"
            raise SettingsError(f"study.{kind}.{visible(key)}: no such option of {name}; {hint}")
        kinds = allowed[key].split(" | ")
        if not any(_is_of(value, kind_name) for kind_name in kinds):
            raise SettingsError(
                f"study.{kind}.{key}={visible(str(value))}: must be {' or '.join(kinds)} with"
                f" {kind}={name}"
            )
        least = LEAST.get(key, 0)
        if _is_of(value, "float") and not least <= value < math.inf:  # also not a number
            finite = " and finite" if "float" in kinds else ""
            raise SettingsError(f"study.{kind}.{key}={value}: must be {least} or more{finite}")


def _is_of(value: Any, kind: str) -> bool:
    return isinstance(value, KINDS[kind]) and (kind == "bool" or not isinstance(value, bool))


def _parameters(kind: type[Any]) -> dict[str, str]:
    """Return the possible options in a file for one of Optuna's classes, with their types."""
    types = {}
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        hint = parameter.annotation
        annotation = hint.strip("'") if isinstance(hint, str) else getattr(hint, "__name__", "")
        plain = set(annotation.split(" | ")) <= {*KINDS}
        if plain and name not in {"seed", *DEPRECATED} and not name.startswith("warn_"):
            types[name] = annotation
    return types


T = TypeVar("T")

SAMPLERS: Mapping[str, type[BaseSampler]] = {
    "tpe": TPESampler,
    "random": RandomSampler,
    "grid": RandomSampler,  # draws parameters that a first trial leaves open; points are enqueued
    "gp": GPSampler,
    "cma-es": CmaEs,
    "qmc": QMCSampler,
    "nsga2": NSGAIISampler,
}
PRUNERS: Mapping[str, type[BasePruner]] = {
    "median": MedianPruner,
    "percentile": PercentilePruner,
    "successive-halving": SuccessiveHalvingPruner,
    "hyperband": HyperbandPruner,
    "none": NopPruner,
}
OBJECTIVES = {
    "accuracy": Column("held-out accuracy", "larger", "%"),
    "loss": Column("held-out loss", "smaller"),
    "bytes": Column("bytes sent both ways", "smaller"),
    "virtual_seconds": Column("virtual seconds", "smaller"),
    "virtual_joules": Column("virtual joules", "smaller"),
}
"""Objectives as columns in words, as Optuna's dashboard, plots, pages and TensorBoard name them:
accuracy or loss on the held-out samples; bytes sent both ways; virtual time and energy."""
JUDGED = ("accuracy",)
"""Objectives that a pruner may judge: evaluations report accuracy."""
STATISTICS = ("mean", "lower")
"""Statistic of a trial's accuracy over its seeds: the mean, or one standard error below it."""
PERCENTILE, GRACE_SHARE, GRACE_EVALUATIONS = 25.0, 10, 3
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "percentile": {"percentile": PERCENTILE},
    "hyperband": {"max_resource": 1},
}
"""Options without which Optuna refuses others; a study gives its own when it is built."""


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search.

    Attributes:
        sampler: One of SAMPLERS.
        pruner: One of PRUNERS.
        objectives: Distinct names of OBJECTIVES.
        seeds: Number of runs of a trial; their seeds count up from the trial's.
        over_seeds: One of STATISTICS, for the accuracy of a trial of several runs.
        sampler_options: Arguments of Optuna's sampler.
        pruner_options: Arguments of Optuna's pruner.
        coordinates: Keys of the coordinates of a quasi-random point, in order; none takes the
            ranges that every trial searches.
        constraints: Most bytes and seconds of the best trial, by name.
        typed: Names of the options from the command line; the others are from a study file.
    """

    sampler: str = "tpe"
    pruner: str = "none"
    objectives: tuple[str, ...] = ("accuracy",)
    seeds: int = 1
    over_seeds: str = "mean"
    sampler_options: Mapping[str, Any] = field(default_factory=dict)
    pruner_options: Mapping[str, Any] = field(default_factory=dict)
    coordinates: tuple[str, ...] = ()
    constraints: Mapping[str, float] = field(default_factory=dict)
    typed: Collection[str] = ()

    @classmethod
    def of(
        cls,
        sampler: str | Mapping[str, Any] | None,
        pruner: str | Mapping[str, Any] | None,
        objectives: tuple[str, ...],
        **more: Any,
    ) -> SearchOptions:
        """Return the options of a study file; a table there has a name and options.

        The default pruner is "median" if accuracy is the only objective, else "none".

        Raises:
            SettingsError: a table has no name.
        """
        default = "median" if objectives == JUDGED else "none"
        drawing, sampler_options = _named("sampler", "tpe" if sampler is None else sampler)
        pruning, pruner_options = _named("pruner", default if pruner is None else pruner)
        return cls(
            drawing,
            pruning,
            objectives,
            sampler_options=sampler_options,
            pruner_options=pruner_options,
            **more,
        )

    def check(self) -> None:
        """Validate all options.

        Raises:
            SettingsError: an option is unknown or wrong, or options cannot be combined.
        """
        self._check("sampler", self.sampler, self.sampler_options, SAMPLERS)
        self._check("pruner", self.pruner, self.pruner_options, PRUNERS)
        if self.sampler_options:
            self.build_sampler(0, 0, {})
        if self.pruner_options:
            self._build_pruner(NEEDED.get(self.pruner, {}))
        names, several = {*self.objectives}, len(self.objectives)
        if not names or names - {*OBJECTIVES} or len(names) < several:
            raise SettingsError(
                f"{self.label('objectives')}={visible(','.join(self.objectives))}: must be distinct"
                f" ones of {', '.join(OBJECTIVES)}"
            )
        if self.pruner != "none" and self.objectives != JUDGED:
            raise SettingsError(
                f"{self.label('pruner')}={self.pruner}: pruners judge the objective accuracy alone,"
                f" but got {','.join(self.objectives)}; use pruner none"
            )
        if several > 1 and self.sampler == "cma-es":
            raise SettingsError(
                f"{self.label('sampler')}=cma-es: searches one objective only, but got {several}"
            )
        if self.over_seeds not in STATISTICS:
            raise SettingsError(
                f"study.over_seeds={visible(self.over_seeds)}: must be one of"
                f" {', '.join(STATISTICS)}"
            )
        if self.over_seeds == "lower" and "accuracy" not in self.objectives:
            raise SettingsError("study.over_seeds=lower: must have the objective accuracy")
        if self.over_seeds == "lower" and self.seeds == 1:
            raise SettingsError("study.over_seeds=lower: must have seeds of 2 or more, but got 1")

    def label(self, name: str) -> str:
        """Return the name of an option in messages."""
        return name if name in self.typed else f"study.{name}"

    def _check(
        self, kind: str, name: str, options: Mapping[str, Any], known: Mapping[str, type[Any]]
    ) -> None:
        if name not in known:
            raise SettingsError(
                f"{self.label(kind)}={visible(name)}: must be one of {', '.join(known)}"
            )
        check_options(kind, name, options, None if name == "grid" else known[name])

    def build_pruner(self, settings: raysim.Settings) -> BasePruner:
        """Return the pruner for runs of these settings.

        By default it judges no trial in the first tenth of the rounds or before the third
        evaluation.

        Raises:
            SettingsError: Optuna rejects its options.
        """
        rounds = settings.rounds
        grace = max(rounds // GRACE_SHARE + 1, GRACE_EVALUATIONS * settings.evaluation.every)
        defaults: Mapping[str, Mapping[str, Any]] = {
            "median": {"n_warmup_steps": grace},
            "percentile": {"n_warmup_steps": grace, "percentile": PERCENTILE},
            "successive-halving": {"min_resource": grace},
            "hyperband": {"min_resource": grace, "max_resource": max(grace, rounds)},
        }
        options = {**defaults.get(self.pruner, {}), **self.pruner_options}
        if self.pruner == "hyperband":
            most = rounds if options["max_resource"] == "auto" else options["max_resource"]
            if (least := options["min_resource"]) > most:
                problem = f"min_resource={least}: must be at most max_resource={most}"
                raise SettingsError(f"study.pruner=hyperband: {problem}")
        return self._build_pruner(options)

    def _build_pruner(self, defaults: Mapping[str, Any]) -> BasePruner:
        options = self.pruner_options
        return _build("pruner", self.pruner, PRUNERS[self.pruner], {**defaults, **options}, options)

    def build_sampler(self, seed: int, number: int, common: Mapping[str, Range]) -> BaseSampler:
        """Return the sampler of one trial.

        Args:
            seed: Seed of the study.
            number: Number of the trial among trials that repeat none.
            common: Ranges searched by every trial.

        Raises:
            SettingsError: Optuna rejects its options.
        """
        kind = SAMPLERS[self.sampler]
        own_seed = torch_seed(seed, "trial", number) % 2**32
        chosen = self.sampler_options
        options = {"seed": own_seed, **_quiet(kind), **chosen}
        if kind is QMCSampler:  # one sequence for all trials
            independent = RandomSampler(seed=own_seed)
            options |= {"seed": torch_seed(seed, "sequence") % 2**32}
            options |= {"independent_sampler": independent, "number": number, "common": common}
            options |= {"coordinates": self.coordinates}
            return _build("sampler", self.sampler, QuasiMonteCarlo, options, chosen)
        return _build("sampler", self.sampler, kind, options, chosen)


def _named(kind: str, choice: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if isinstance(choice, str):
        return choice, {}
    if not isinstance(name := choice.get("name"), str):
        problem = (
            f"={visible(str(name))}: must be a word" if "name" in choice else ": must be given"
        )
        raise SettingsError(f"study.{kind}.name{problem}")
    return name, {key: value for key, value in choice.items() if key != "name"}


def _quiet(kind: type[BaseSampler]) -> dict[str, bool]:
    """Return the options that turn off warnings of intentionally independent draws."""
    names = inspect.signature(kind.__init__).parameters
    return {name: False for name in names if name.startswith("warn_")}


def _build(
    kind: str,
    name: str,
    factory: Callable[..., T],
    options: Mapping[str, Any],
    chosen: Mapping[str, Any],
) -> T:
    """Build a sampler or a pruner with options; an error names the given ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna's experimental and deprecated arguments
        try:
            return factory(**options)
        except (ValueError, TypeError) as error:
            named = ", ".join(f"{key}={value}" for key, value in chosen.items())
            reason = " ".join(str(error).split())
            raise SettingsError(f"study.{kind}={name}: {named}: {reason}") from error
