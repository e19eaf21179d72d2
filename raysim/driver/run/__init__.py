"""Run: its rounds, one after another, and their commits.

In: a run's parts, checked and open. Out: a row per committed round; a run directory to resume from.
Imported by `driver.start`.
"""

from raysim.driver.run.run import Run

__all__ = ["Run"]
