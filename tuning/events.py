"""TensorBoard events of a study, for the HPARAMS tab.

The event files of each trial hold its settings and its metrics by round; the study's file lists the
settings and metrics that the tab compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optuna.distributions import CategoricalDistribution
from tensorboard.plugins.hparams import summary_v2 as summaries
from torch.utils.tensorboard import SummaryWriter

from raysim.api.scoring import ACCURACY, HOLDOUT, LOSS
from raysim.storage.rows.tags import tag_of
from raysim.tuning.studies.ranges import Range, of_one_type
from raysim.tuning.studies.samplers import OBJECTIVES

TOTALS = {
    "bytes": "bytes/total",
    "virtual_seconds": "virtual/total_seconds",
    "virtual_joules": "virtual/total_joules",
}
"""Tags of whole trials by objective; runs write the scalars of their rounds."""
TAGS = {
    score.name: tag_of(score.of(HOLDOUT._replace(score=score.name))) for score in (ACCURACY, LOSS)
} | TOTALS
"""Tags of a trial by objective; its run writes the tags of held-out samples."""


def describe(out: Path, space: Mapping[str, Range], objectives: tuple[str, ...]) -> None:
    """Write the search space and objectives of a study; replace the file of an earlier call."""
    for old in out.glob("events.out.tfevents.*"):
        old.unlink()
    parameters = [summaries.HParam(key, _domain(values)) for key, values in space.items()]
    metrics = [
        summaries.Metric(TAGS[name], display_name=OBJECTIVES[name].name)
        for name in dict.fromkeys(("accuracy", *objectives))
    ]
    with SummaryWriter(str(out)) as events:
        events._get_file_writer().add_summary(summaries.hparams_config_pb(parameters, metrics))


def add_total(folder: Path, objective: str, value: float, rounds: int) -> None:
    """Write the value of an objective of TOTALS for a whole trial."""
    with SummaryWriter(str(folder)) as events:
        events.add_scalar(TOTALS[objective], value, rounds)


def _domain(values: Range) -> summaries.Domain:
    if isinstance(values, CategoricalDistribution):
        return summaries.Discrete(of_one_type([*map(_shown, values.choices)]))
    return summaries.RealInterval(float(values.low), float(values.high))


def _shown(value: Any) -> Any:
    return "none" if value is None else value
