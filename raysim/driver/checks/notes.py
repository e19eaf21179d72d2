"""Notes on settings that go together and may not do what their user expects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from raysim.config import Settings
from raysim.core.components import ask, called
from raysim.core.method import Method
from raysim.core.selection import Selection
from raysim.driver.round_inputs import first_pass
from raysim.storage.checkpoints import Checkpoint


def notes_on(
    settings: Settings, network: nn.Module, initial: Checkpoint, sizes: npt.NDArray[np.int64]
) -> Iterator[str]:
    """Yield the lines of the method and the selection, before a run starts.

    Args:
        settings: The run's settings.
        network: The network as it was built.
        initial: The checkpoint before the first round.
        sizes: Samples that each client trains on [K].

    Raises:
        SettingsError: a component fails to say them.
    """
    yield from _lines(settings.method, network)
    if type(settings.selection).notes is Selection.notes:
        return
    aggregation = settings.aggregation
    first = first_pass(settings, network, initial, sizes)
    own = aggregation.weights or (first and first.weighting)
    weighting = "uniform" if aggregation.sees_updates else own or settings.weighting
    samples = settings.participants.of(sizes)
    yield from _lines(settings.selection, samples, settings.cohort_size, weighting)


def _lines(component: Method | Selection, *given: Any) -> Iterator[str]:
    """Yield the notes of a component, each with the setting that names it.

    Raises:
        SettingsError: it fails, or returns something else.
    """
    lines = ask(component, "notes", *given, returns=_are_lines, expected="a sequence of lines")
    yield from (f"{called(component)}: {line}" for line in lines)


def _are_lines(returned: Any) -> bool:
    return not isinstance(returned, str) and all(isinstance(line, str) for line in returned)
