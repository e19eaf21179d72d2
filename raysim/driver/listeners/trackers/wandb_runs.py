"""Runs in W&B.

WANDB_MODE=offline keeps runs in files, WANDB_DIR names their folder. WANDB_PROJECT names the
project; the default is `raysim`. If a server does not answer within seconds, the run does not
start; W&B would wait for a minute and a half.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from raysim.driver.listeners.trackers.base import Tracker, check_answers

WITHOUT_SERVER = ("offline", "dryrun", "disabled")
"""Values of WANDB_MODE without a server."""


class WandbRuns(Tracker):
    """Runs of a W&B project."""

    def __init__(self) -> None:
        """Connect to nothing yet: that is done when a run is opened.

        Raises:
            OSError: the server does not answer.
        """
        import wandb

        settings = wandb.setup().settings
        if settings.mode not in WITHOUT_SERVER:
            check_answers("WANDB_BASE_URL", settings.base_url)
        self._run: Any = None

    def open(self, known: str | None, name: str, parameters: Mapping[str, Any]) -> tuple[str, int]:
        """Open a run under an id; offline, W&B does not know its last round."""
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "raysim"),
            id=known or uuid4().hex[:16],
            name=name,
            config=dict(parameters),
            resume="allow",
            reinit="create_new",  # a process may iterate over several runs
            settings=wandb.Settings(console="off", silent=True),
        )
        return str(self._run.id), 0

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the values of a round."""
        self._run.log(dict(values), step=step)

    def summarise(self, values: Mapping[str, float], step: int) -> None:
        """Set the final values in the run's summary."""
        self._run.summary.update(dict(values))

    def close(self, *, finished: bool) -> None:
        """Finish the run, which waits until its values are written."""
        self._run.finish(exit_code=0 if finished else 1)
