"""Training loop of a user's own: a function that trains a client in place of the engine's steps.

`local.train=my_module:function` names it, or `Task.train` has it. `raysim.Client` is its argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from raysim.api.components import imported
from raysim.errors import SettingsError, visible
from raysim.user_input.user_modules import TARGET

Loop = Callable[[Any], Mapping[str, Any] | None]
"""Trains a client; returns numbers of the round by name, or None."""
Evaluate = Callable[[Any, Any, Any], Mapping[str, Any]]
"""Returns numbers by name, given a module, and inputs and targets of the test set."""
OWN_LOOP = "train"
"""Owner of the loop's groups among a client's, and of the numbers that it returns."""
TASK_LOOP = "Task.train"
"""Value of `local.train` in a run whose task has the loop."""


def loop_of(target: str) -> Loop:
    """Return the function that `local.train` names.

    Raises:
        SettingsError: there is none, or it does not take one argument.
    """
    key = f"local.train={visible(target)}"
    if not TARGET.fullmatch(target):
        raise SettingsError(f"{key}: must name a function, such as my_loop:train")
    loop: Loop = checked_function(imported(target, key), key, "client")
    return loop


def checked_function(function: Any, key: str, *arguments: str) -> Any:
    """Return a user's function, which must take some arguments.

    Args:
        function: The function.
        key: Its name for the error.
        arguments: Words for the arguments.

    Raises:
        SettingsError: it is something else.
    """
    try:
        signature(function).bind(*arguments)
    except (TypeError, ValueError) as error:
        wanted = f"must be a function of ({', '.join(arguments)})"
        raise SettingsError(f"{key}: {wanted}") from error
    return function


def named_loop(train: str | None) -> str:
    """Return a loop as messages name it, given the value of `local.train`."""
    return train if train == TASK_LOOP else f"local.train={train}"
