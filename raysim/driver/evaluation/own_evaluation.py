"""Evaluation by a function of the user's own, `Task.evaluate`, in the driver's process."""

from __future__ import annotations

import copy
from collections.abc import Collection

from raysim.api.components import cause
from raysim.api.method import ServerState
from raysim.driver.start.context import CheckedRun
from raysim.errors import RaysimError, SettingsError
from raysim.federation.base_files import HeldBase
from raysim.federation.federation import load_tensors
from raysim.federation.opened import OpenedSamples
from raysim.numbers.seeds import seeded, torch_seed
from raysim.numbers.tensors import CPU
from raysim.storage.column_names import OF_ROUNDS, check_names
from raysim.training.own_loop import checked_numbers, seeded_globally

EVALUATE = "Task.evaluate"


def own_figures(
    run: CheckedRun, state: ServerState, number: int, taken: Collection[str]
) -> dict[str, float]:
    """Return the numbers of the user's own evaluation of a model; none without one.

    Args:
        run: The run.
        state: The server's state with the model.
        number: The round, for the random draws of the evaluation.
        taken: Names of the round's other numbers.

    Raises:
        SettingsError: the function fails, changes a frozen tensor, or returns something else than
            numbers by name.
    """
    evaluate, settings = run.federation.evaluate, run.settings
    if evaluate is None:
        return {}
    network = copy.deepcopy(run.network).eval()
    load_tensors(network, settings.method.deployed(state), EVALUATE)
    base = HeldBase.of(network, EVALUATE)
    samples = OpenedSamples(run.federation, CPU).test(0, len(run.federation.test_targets))
    keys = settings.seed, "evaluation", number
    try:
        with seeded(*keys), seeded_globally(torch_seed(*keys)):
            returned = evaluate(network, samples.x.clone(), samples.y.clone())
    except RaysimError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise SettingsError(f"{EVALUATE}: failed: {cause(error)}") from error
    base.check_values()
    numbers = checked_numbers(returned, EVALUATE)
    check_names(numbers, OF_ROUNDS, taken, f"{EVALUATE}: the number")
    return numbers
