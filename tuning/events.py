"""What TensorBoard's HPARAMS tab shows of a study: what was tried, and what came of it.

A trial is a run, whose own event files hold its settings and its figures by round; the study's file
says which of them the tab compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from optuna.distributions import CategoricalDistribution
from tensorboard.plugins.hparams import summary_v2 as summaries
from torch.utils.tensorboard import SummaryWriter

from raysim.tuning.study import Range

METRICS = {
    "accuracy": summaries.Metric("holdout_accuracy", display_name="held-out accuracy"),
    "bytes": summaries.Metric("bytes", display_name="bytes sent"),
}
"""Scalars of a trial, by objective; the first is its run's."""


def describe(out: Path, space: Mapping[str, Range], objectives: tuple[str, ...]) -> None:
    """Write what a study tries and seeks, in place of what an earlier call wrote."""
    for old in out.glob("events.out.tfevents.*"):
        old.unlink()
    tried = [summaries.HParam(key, _domain(values)) for key, values in space.items()]
    about = summaries.hparams_config_pb(tried, [METRICS[objective] for objective in objectives])
    with SummaryWriter(str(out)) as events:
        events._get_file_writer().add_summary(about)


def add_bytes(folder: Path, sent: int, rounds: int) -> None:
    """Write the bytes that a whole trial sent, which no round of its run has."""
    with SummaryWriter(str(folder)) as events:
        events.add_scalar("bytes", sent, rounds)


def _domain(values: Range) -> summaries.Domain:
    if isinstance(values, CategoricalDistribution):
        return summaries.Discrete(values.choices)
    return summaries.RealInterval(float(values.low), float(values.high))
