"""Checks of the states that a method's server and its rule return; an error stops in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from raysim.api.components import Component, call, called, shown
from raysim.api.method import Method, ServerState
from raysim.api.server import ServerRule
from raysim.errors import RunError, SettingsError
from raysim.numbers.given import Given
from raysim.numbers.tensors import (
    Tensors,
    as_real,
    flatten,
    is_finite,
    like,
    parameter_names,
    state_of,
)
from raysim.numbers.tensors.digests import checksums

NAME = "model"
"""The group of tensors that keep their names and dtypes."""
ASKED = "a function that is asked of a state (deployment, client_init)"
"""Functions of a method that receive a state outside of its round, in an error."""


def check_state(component: Component, function: str, after: Any) -> None:
    """Check that a state can be kept: groups of finite tensors, and numbers and words.

    Args:
        component: The method, or the server's rule.
        function: The function that returned it.
        after: The returned value.

    Raises:
        SettingsError: it is no such state; the message names the part.
        RunError: a value is not finite; the message names the tensor.
    """
    whose = f"{called(component)}: {function} returned"
    if not isinstance(after, ServerState):
        raise SettingsError(
            f"{whose} {shown(after)}; must return a ServerState, such as state.replace(model=...)"
        )
    if problem := next(_problems(after), None):
        raise SettingsError(f"{whose} a state with {problem}")
    for name, tensor in flatten(after.groups).items():
        if not is_finite(tensor):
            raise RunError(f"{whose} a value that is not finite (tensor {name})")


def check_model(method: Method, function: str, after: ServerState, before: ServerState) -> None:
    """Check that the group `model` keeps its names, dtypes and shapes.

    A method may state that it changes shapes.

    Args:
        method: The method.
        function: The function that returned the state.
        after: The state, after `check_state`.
        before: The state before it.

    Raises:
        SettingsError: a name, dtype or shape differs; the message names the tensor.
    """
    if NAME in before.groups:
        model, kept = after.groups.get(NAME, {}), before.groups[NAME]
        if problem := next(_differences(model, kept, method.changes_shapes), None):
            raise SettingsError(f"{called(method)}: {function} returned a state with {problem}")


def check_deployed(method: Method, state: ServerState, network: nn.Module) -> None:
    """Check that a state has the tensors of the deployed network.

    Buffers that are not persistent may be missing, because a forward may register them.

    Args:
        method: The method.
        state: The state, after `check_state`.
        network: The network.

    Raises:
        SettingsError: a tensor is missing, or `deployed` fails or changes the state in place.
    """
    named = state_of(network).keys() & network.state_dict().keys()
    left = given_state(state)
    if lacking := named - call(method, Method.deployed, state).keys():
        raise SettingsError(
            f"{called(method)}: deployed returned no tensor {min(lacking)!r}, which the network has"
        )
    left.check_left("deployed", called(method))


def with_kept(
    rule: ServerRule, method: Method, network: nn.Module, state: ServerState
) -> ServerState:
    """Return a method's state before the first round, with the groups of the server's rule.

    Raises:
        SettingsError: the rule returns other groups, or a group has a name that the method uses.
        RunError: a value is not finite.
    """
    if both := sorted({*rule.keeps} & state.groups.keys()):
        raise SettingsError(
            f"{called(rule)}: keeps a group {both[0]!r}, and so does {called(method)}; one of them"
            " must name it otherwise"
        )
    state = state.replace(**call(rule, ServerRule.init, _parameters(network, state)))
    check_state(rule, "init", state)
    return state


def moved(
    rule: ServerRule, network: nn.Module, before: ServerState, after: ServerState
) -> ServerState:
    """Return the state after a round, its model moved by the server's rule.

    Args:
        rule: The rule, with its learning rate of the round.
        network: The network as it was built.
        before: The state before the round.
        after: The method's next state, after `check_state` and `check_model`.

    Raises:
        SettingsError: the rule fails, returns something else, or changes the state in place.
        RunError: a value is not finite.
    """
    mean, left = _parameters(network, after), given_state(before)
    groups = {group: before.groups[group] for group in rule.keeps}
    params, kept = call(rule, ServerRule.step, _parameters(network, before), mean, groups)
    left.check_left("step", called(rule))
    if params is mean and not kept:
        return after
    model = after.groups[NAME]
    stepped = {name: like(tensor, model[name]) for name, tensor in params.items()}
    result = after.replace(**{NAME: {**model, **stepped}, **kept})
    check_state(rule, "step", result)
    return result


def _parameters(network: nn.Module, state: ServerState) -> Tensors:
    """Return the trainable parameters of a state's model, complex ones as pairs of reals."""
    model, names = state.groups.get(NAME, {}), parameter_names(network)
    return {name: as_real(tensor) for name, tensor in model.items() if name in names}


def given_state(state: ServerState) -> Given:
    """Record the tensors of a state before functions receive it."""
    return Given({"the state": state.groups})


class StateOfRound:
    """State that a method's round receives: it has the kept tensors in new mappings.

    At each step, the tensors' version counters show changes in place. A change through NumPy or
    `.data`, which does not count, is found when the round ends.

    Attributes:
        given: The state for the method.
    """

    def __init__(self, kept: ServerState) -> None:
        """Record the tensors, numbers and words of a state.

        Args:
            kept: The state.
        """
        self._kept = kept
        self._tensors = flatten(kept.groups)
        self._seen = Given({name: {name: tensor} for name, tensor in self._tensors.items()})
        self._sums = checksums(self._tensors)
        groups = {group: dict(tensors) for group, tensors in kept.groups.items()}
        self.given = ServerState(groups, dict(kept.info))

    def check_left(self, method: Method, *, ended: bool = False) -> None:
        """Check that the round has left the state as it was.

        Args:
            method: The method.
            ended: Whether the round has ended.

        Raises:
            SettingsError: the round has changed it in place; the message names the tensor.
        """
        present = flatten(self.given.groups)
        sums = checksums(self._tensors) if ended else self._sums
        changed = [
            *self._seen.changed(),
            *(name for name, value in sums.items() if value != self._sums[name]),
            *(name for name, tensor in self._tensors.items() if present.get(name) is not tensor),
            *(name for name in present if name not in self._tensors),
            *(["info"] if {**self.given.info} != {**self._kept.info} else []),
        ]
        if changed:
            raise SettingsError(
                f"{called(method)}: round changes the state that it is given in place"
                f" ({changed[0]}); change a copy, tensor.clone(), and return another state, such as"
                " state.replace(model=...)"
            )


def _problems(state: Any) -> Iterator[str]:
    """Yield the parts of a state that cannot be kept, with the rule."""
    if not isinstance(state.groups, Mapping):
        yield f"groups {shown(state.groups)}; must map names to mappings from names to tensors"
        return
    for group, tensors in state.groups.items():
        if not isinstance(group, str) or not group or "/" in group:
            yield f"a group {shown(group)}; must have a name, without '/'"
        elif not isinstance(tensors, Mapping):
            yield f"{group!r} as {shown(tensors)}; must map names to tensors"
        else:
            for name, tensor in tensors.items():
                if not isinstance(name, str):
                    yield f"the name {shown(name)} in {group!r}; must be a string"
                elif not isinstance(tensor, Tensor):
                    kind = type(tensor).__name__
                    yield f"'{group}/{name}' of the type {kind}; must be a torch.Tensor"
                elif problem := _without_values(tensor):
                    yield f"'{group}/{name}' {problem}"
    try:
        json.dumps(dict(state.info), allow_nan=False)
    except (TypeError, ValueError) as error:
        yield f"info that JSON cannot hold: {error}; must be finite numbers or words"


def _without_values(tensor: Tensor) -> str:
    """Return why a tensor lacks values; "" if it has a value in each place."""
    if tensor.is_meta:
        return "on the device meta, without values; must have some"
    kind = str(tensor.layout).removeprefix("torch.")
    kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else kind
    return "" if kind == "strided" else f"as a tensor that is {kind}; must be a dense one"


def _differences(returned: Tensors, kept: Tensors, changes_shapes: bool) -> Iterator[str]:
    """Yield differences between the model's tensors and those before."""
    if lacking := sorted(kept.keys() - returned.keys()):
        yield f"no tensor '{NAME}/{lacking[0]}'; the model keeps its tensors"
    if more := sorted(returned.keys() - kept.keys()):
        yield f"a tensor '{NAME}/{more[0]}', which the model lacks; choose a separate group for it"
    for name, tensor in sorted(returned.items()):
        if tensor.shape != kept[name].shape and not changes_shapes:
            have, must = [*tensor.shape], [*kept[name].shape]
            yield (
                f"'{NAME}/{name}' of the shape {have}; must be of {must}, unless the class states"
                " changes_shapes = True"
            )
        if tensor.dtype != kept[name].dtype:
            dtype, base = (str(t.dtype).removeprefix("torch.") for t in (tensor, kept[name]))
            yield f"'{NAME}/{name}' in {dtype}; must be in {base}: tensor.to(torch.{base})"
