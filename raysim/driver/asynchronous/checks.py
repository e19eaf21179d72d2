"""Checks of the passes of asynchronous rounds, which must be alike in all rounds."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from raysim.api.components import called
from raysim.api.method import Method
from raysim.api.rules import Pass
from raysim.errors import SettingsError
from raysim.training.rule_keys import functions_of_step, key_of_function


def check_pass(method: Method, pass_: Pass, cohort: Sequence[int]) -> None:
    """Check that a pass over a cohort [m], ascending, suits asynchronous rounds.

    Raises:
        SettingsError: the pass does not suit them.
    """
    key = called(method)
    if tuple(sorted(pass_.clients)) != tuple(cohort):
        raise SettingsError(f"{key}: must run its pass over the cohort, as rounds overlap")
    if pass_.personal or any(
        isinstance(value, Mapping) for value in (pass_.epochs, pass_.lr, pass_.weighting)
    ):
        raise SettingsError(
            f"{key}: epochs, rates, weights or groups by client do not go with asynchronous rounds"
        )


def check_alike(method: Method, first: Pass, pass_: Pass, number: int) -> None:
    """Check that a round's pass equals the first one, apart from tensors and learning rate.

    Clients of several rounds train at once, and a resumed run trains the clients in flight with the
    pass of its next round.

    Args:
        method: The run's method.
        first: The pass of the first round.
        pass_: The pass of another round.
        number: Rounds before that round.

    Raises:
        SettingsError: the passes differ. Only rules with keys are compared (`rule_keys`).
    """
    one, other = _fixed(first), _fixed(pass_)
    for name, value in one.items():
        if value != other[name]:
            raise SettingsError(
                f"{called(method)}: the {name} of its pass must be alike in all rounds,"
                f" as asynchronous rounds overlap; rounds 1 and {number + 1} differ"
            )


def _fixed(pass_: Pass) -> dict[str, Hashable]:
    """Return the parts of a pass that must be alike, by name; None for functions without a key."""
    rules = pass_.rules
    functions = (rules.start, rules.finish, *functions_of_step(rules, rules.transforms))
    shapes = {
        (group, name, tensor.shape, tensor.dtype)
        for group, tensors in pass_.broadcast.items()
        for name, tensor in tensors.items()
    }
    transforms = tuple(
        (transform.name, transform.term, transform.after_momentum) for transform in rules.transforms
    )
    counted = (rules.criterion is None, len(rules.penalties), transforms)
    return {
        "epochs": None if isinstance(pass_.epochs, Mapping) else pass_.epochs,
        "trainable parameters": pass_.trainable or frozenset(),
        "weighting": str(pass_.weighting or ""),
        "label": pass_.label,
        "broadcast": frozenset(shapes),
        "rules": (counted, *map(key_of_function, functions)),
    }
