"""Study: settings, and a search over ranges of some of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

import raysim
from raysim.errors import SettingsError
from raysim.storage.summary import VIRTUAL
from raysim.tuning.studies.entries import read_entries
from raysim.tuning.studies.reading import read_first, read_space
from raysim.tuning.studies.samplers import SearchOptions
from raysim.tuning.studies.space import Space

HOLDOUT = 0.1
"""Default of `evaluation.holdout` in a study."""
SCHEDULE = ("rounds", "evaluation.every")
"""Settings that decide the rounds of a pruner's judgements."""


class Constraints(BaseModel):
    """Bounds on the best trial of a study, on means if a trial has several seeds."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    bytes: float | None = Field(default=None, gt=0, description="bytes sent both ways")
    seconds: float | None = Field(default=None, gt=0, description="seconds of its run")


class StudyTable(BaseModel):
    """Table `[study]` of a study file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    about: str = Field(default="", description="description in one line")
    objectives: list[str] = Field(
        default=["accuracy"], description="accuracy, loss, bytes, virtual_seconds, virtual_joules"
    )
    sampler: str | dict[str, Any] = Field(default="tpe", description="name, or name and options")
    pruner: str | dict[str, Any] | None = Field(
        default=None, description="the same; default: median for accuracy alone, else none"
    )
    seeds: int = Field(default=1, ge=1, le=1000, strict=True, description="runs of a trial")
    over_seeds: str = Field(default="mean", description="mean, or lower: one standard error less")
    constraints: Constraints = Field(default=Constraints(), description="of the best trial")
    trials: int = Field(default=50, ge=1, le=10**6, strict=True, description="number of trials")
    space: dict[str, Any] = Field(description="ranges by setting")
    first: list[dict[str, Any]] = Field(default=[], description="first trials")


@dataclass(frozen=True)
class Study:
    """Search over settings.

    Attributes:
        table: The table `[study]`.
        source: A preset, the path of a settings file, or settings.
        file_settings: Settings of the file itself, by dotted key.
    """

    table: StudyTable
    source: str | raysim.Settings
    file_settings: Mapping[str, Any] = field(default_factory=dict)

    def options(
        self,
        sampler: str | None = None,
        pruner: str | None = None,
        objectives: str | None = None,
        seeds: int | None = None,
    ) -> SearchOptions:
        """Return the options of the study, replaced by the command line's.

        None keeps the study's option; objectives are separated by commas.

        Raises:
            SettingsError: an option is unknown or wrong, or options cannot be combined.
        """
        names = self.table.objectives if objectives is None else objectives.split(",")
        typed = {
            "sampler": sampler,
            "pruner": pruner,
            "objectives": objectives,
            "seeds": seeds,
        }
        options = SearchOptions.of(
            _chosen(sampler, self.table.sampler),
            _chosen(pruner, self.table.pruner),
            tuple(names),
            seeds=self.table.seeds if seeds is None else seeds,
            over_seeds=self.table.over_seeds,
            constraints=self.table.constraints.model_dump(exclude_none=True),
            typed={name for name, value in typed.items() if value is not None},
        )
        options.check()
        return options

    def resolve(self, overrides: Mapping[str, Any]) -> ResolvedStudy:
        """Return the study with overrides applied; an overridden setting is not searched.

        Raises:
            SettingsError: an override or a range is wrong, no setting is left to search, there is
                no holdout, or the settings reject part of a range.
        """
        settings = self._settings(overrides)
        if not settings.evaluation.holdout:
            raise SettingsError(
                "evaluation.holdout=0.0: must be above 0; a study selects by held-out samples"
            )
        if settings.out is not None:
            raise SettingsError(f"out={settings.out}: use the option --out for a study")
        entries = read_entries(self.table.space)
        space = read_space(entries, settings, overrides)
        unsearched = {*entries, *overrides} - {*space}
        return ResolvedStudy(
            settings, space, read_first(self.table.first, space, settings, unsearched)
        )

    def _settings(self, overrides: Mapping[str, Any]) -> raysim.Settings:
        """Return the settings; a preset's target is dropped, and a holdout of 0 is its default."""
        source = self.source
        if isinstance(source, str):
            settings = raysim.load_config(source, overrides)
        else:
            settings = source.override(overrides)
        keys = {*self.file_settings, *overrides}
        defaults: dict[str, Any] = {"target_accuracy": None}
        if not settings.evaluation.holdout:
            defaults["evaluation.holdout"] = HOLDOUT
        return settings.override({key: defaults[key] for key in defaults.keys() - keys})


@dataclass(frozen=True)
class ResolvedStudy:
    """Study with overrides applied.

    Attributes:
        settings: Settings of every trial, without the searched values.
        space: Searched ranges.
        first: Values of the first trials by dotted key; missing ones are drawn.
    """

    settings: raysim.Settings
    space: Space
    first: tuple[Mapping[str, Any], ...] = ()


def check_together(options: SearchOptions, resolved: ResolvedStudy) -> None:
    """Validate options against the settings and the space of a study.

    Raises:
        SettingsError: `seed` is searched by trials of several seeds, a pruner judges trials with
            different rounds or evaluations, or an objective needs a virtual clock or a
            classification.
    """
    if options.seeds > 1 and "seed" in resolved.space:
        label = options.label("seeds")
        raise SettingsError(f"{label}={options.seeds}: must be 1 where `seed` is searched")
    # A pruner must compare all trials at the same rounds.
    if options.pruner != "none" and (rates := [key for key in SCHEDULE if key in resolved.space]):
        label = options.label("pruner")
        raise SettingsError(
            f"{label}={options.pruner}: must be none where `{rates[0]}` is searched"
        )
    scoring = resolved.settings.dataset.scoring
    if "accuracy" in options.objectives and "accuracy" not in scoring.metrics:
        name = resolved.settings.dataset.title
        raise SettingsError(
            f"{options.label('objectives')}=accuracy: dataset.name={name} has none; use loss"
        )
    for objective in options.objectives:
        if objective in VIRTUAL and not resolved.settings.clock.has_time:
            label = options.label("objectives")
            raise SettingsError(f"{label}={objective}: needs clock.name=devices; it is none")


def _chosen(name: str | None, value: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """Return the study's own choice, unless another name replaces it."""
    same = name is None or (isinstance(value, dict) and value.get("name") == name)
    return value if same else name
