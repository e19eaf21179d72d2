"""Page of `raysim run --dry-run`: what a run will take, before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

from raysim.config import Settings
from raysim.display.units import counted, in_fitting_unit


def dry_run_lines(settings: Settings) -> Iterator[str]:
    """Yield the lines of the estimate of a run; a few of its rounds are trained and forgotten.

    Raises:
        RaysimError: a setting, a file or a client does not allow the run.
    """
    from raysim.driver.start.start import is_finished
    from raysim.tuning.estimates import estimate

    notes: list[str] = []
    if is_finished(settings, notes.append):
        yield from notes[-1:]
        return
    found = estimate(settings)
    names = ("start", "training", "evaluation", "checkpoints")
    parts = {name: in_fitting_unit(getattr(found.seconds, name), "s") for name in names}
    shares = ", ".join(f"{name} {part}" for name, part in parts.items())
    place = f"this process and {found.actors} actors" if found.actors else "this process"
    up, down = (in_fitting_unit(count, "B") for count in (found.bytes_up, found.bytes_down))
    both = in_fitting_unit((found.bytes_up + found.bytes_down) * settings.rounds, "B")
    yield f"time    {in_fitting_unit(found.seconds.total, 's')} ({shares})"
    if not isnan(found.memory):
        yield f"memory  {in_fitting_unit(found.memory, 'B')} in {place}"
    if found.frozen:
        values = f"{found.values:,} values, and {found.frozen:,} frozen ones"
        yield f"model   {values} that do not travel"
    yield f"disk    {in_fitting_unit(found.disk, 'B')} in the run directory"
    yield (
        f"bytes   {up} up and {down} down a round of {settings.cohort_size} of"
        f" {settings.clients} clients; {both} in {counted(settings.rounds, 'round')}"
    )
    early = " or ".join(
        name
        for name, value in (
            ("target_accuracy", settings.target_accuracy),
            ("patience", settings.patience),
        )
        if value is not None
    )
    yield (
        f"from {counted(found.measured, 'round')} measured here, within a factor of two on a"
        " machine without other work"
        + (f"; less if the run stops by {early}" if early else "")
        + (f"; without analysis={','.join(settings.analysis)}" if settings.analysis else "")
    )
    yield "no run directory is made"
