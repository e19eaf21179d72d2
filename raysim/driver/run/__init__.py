"""The run: its rounds, one after another, and the commits that make them count.

In: a run's parts, checked and open. Out: a row per committed round; a run directory to go on from.
Imported by `driver.start`.
"""

from raysim.driver.run.run import Run

__all__ = ["Run"]
