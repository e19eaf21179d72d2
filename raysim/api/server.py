"""Interface of the server's rule: how far, and where to, a round moves the model.

A method makes a model of the uploads of a round; FedAvg takes their mean. The rule takes a step
from the model before the round along the change to that model. Adam and momentum keep their moments
in the server's state. Rules know no method. They go with every method, except if its server takes a
further step that rests on the model it makes (`Method.own_server`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from raysim.api.components import Acting, Registry, returns
from raysim.api.rates import RateSettings
from raysim.numbers.tensors import Groups, Tensors, zeros_like


def _kinds(tensors: Tensors) -> dict[str, object]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


class ServerRule(RateSettings, Acting, ABC):
    """Rule that moves the server's model; its fields are its settings.

    A field `lr` is its learning rate: `step` finds the round's rate, by the schedule, in `self.lr`.
    """

    _of: ClassVar[str] = "server"
    _lasting: ClassVar[str] = "what lasts belongs in the groups that `step` returns"
    keeps: ClassVar[tuple[str, ...]] = ()
    """Names of the groups of tensors that the server keeps for it between rounds."""

    @property
    def rate(self) -> float | None:
        """Its learning rate, the field `lr`; None without one."""
        return getattr(self, "lr", None)

    @returns("the groups of `keeps`", lambda groups, rule, _: groups.keys() == {*rule.keeps})
    def init(self, params: Tensors) -> Groups:
        """Return the groups `keeps` before the first round: zeros for each parameter.

        Args:
            params: The trainable parameters by name, complex ones as pairs of reals.
        """
        return {group: zeros_like(params) for group in self.keeps}

    @abstractmethod
    @returns(
        "parameters with the names, shapes, dtypes of `mean`, and the groups of `keeps`",
        lambda returned, rule, _, mean, kept: (
            _kinds(returned[0]) == _kinds(mean) and returned[1].keys() == kept.keys()
        ),
    )
    def step(self, params: Tensors, mean: Tensors, kept: Groups) -> tuple[Tensors, Groups]:
        """Return the parameters after a round, and the groups to keep; change nothing in place.

        Buffers are not among the parameters: they become the method's.

        Args:
            params: The trainable parameters before the round by name, complex ones as pairs of
                reals.
            mean: The parameters that the method makes of the uploads; FedAvg takes their mean.
            kept: The groups `keeps`.
        """


SERVER_RULES: Registry[ServerRule] = Registry("server", ServerRule, default="mean")  # type: ignore[type-abstract]
