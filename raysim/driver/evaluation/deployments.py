"""Deployments: the models that clients deploy, made for their evaluation and dropped.

A client makes its model by a pass of the method, or by several, one after another, and may then
fine-tune it. Draws of these are keyed by numbers of passes below 0; those of a round count from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from raysim.api.components import call, called
from raysim.api.method import Method
from raysim.api.rules import Pass, samples_of
from raysim.config import Settings
from raysim.driver.rounds.hiding import as_seen
from raysim.driver.rounds.local_values import RoundValues
from raysim.driver.rounds.method_rounds import opened_pass, round_inputs
from raysim.errors import SettingsError
from raysim.execution.messages import PassMessage
from raysim.numbers.arrays import Integers
from raysim.storage.client_states import latest_versions
from raysim.storage.run_state import RunState

NUMBER, FINETUNING = -1, -100
"""Numbers of the first pass of a deployment, the later ones below it; and of the fine-tuning."""


@dataclass(frozen=True)
class Deployment:
    """Deployment of the evaluated clients after a round.

    Attributes:
        settings: The run's settings.
        sizes: Samples that each client trains on [K].
        committed: The state that is evaluated.
        passes: The passes over the clients; empty if they deploy the global model.
        finetuning: The pass that trains what they deploy, if any does.
    """

    settings: Settings
    sizes: Integers
    committed: RunState
    passes: tuple[Pass, ...]
    finetuning: Pass | None

    @classmethod
    def of(
        cls,
        settings: Settings,
        network: nn.Module,
        sizes: Integers,
        committed: RunState,
        clients: Sequence[int],
    ) -> Deployment:
        """Ask the method for the passes.

        Args:
            settings: The run's settings.
            network: The network as it was built.
            sizes: Samples that each client trains on [K].
            committed: The state to evaluate.
            clients: The evaluated clients.

        Raises:
            SettingsError: the method fails, returns something else, or has no such passes.
        """
        now = round_inputs(
            settings,
            network,
            committed,
            sizes=sizes,
            note=lambda text: None,
            cohort=tuple(clients),
        )
        seen = as_seen(settings, settings.method, now)
        seen = replace(seen, cohort=now.cohort)  # it is told who is evaluated, not who trains
        epochs, asked = settings.evaluation.finetuning, (seen, committed.state)
        tuned = Pass(now.cohort, {}, epochs=epochs, lr=now.lr) if epochs else None
        passes: tuple[Pass, ...] = ()
        if settings.evaluation.when == "after":
            passes = _after(settings.method, *asked)
        elif settings.method.deploys_client_models:
            pass_ = call(settings.method, Method.deployment, *asked)
            passes = (pass_,) if pass_ else ()
        passes = tuple(opened_pass(replace(pass_, clients=now.cohort), now) for pass_ in passes)
        return cls(settings, sizes, committed, passes, tuned)

    def messages(self, values: RoundValues) -> tuple[dict[str, Any], ...]:
        """Return the arguments of the messages of `passes`."""
        clients = self.passes[0].clients if self.passes else ()
        initial = self.settings.method.client_init(self.committed.state)
        common = {
            "initial_state": initial,
            "versions": latest_versions(self.committed.versions, clients),
        }
        return tuple(
            self._message(values, pass_, NUMBER - number) | common
            for number, pass_ in enumerate(self.passes)
        )

    def tuning_message(self, values: RoundValues) -> PassMessage | None:
        """Return the message of `finetuning`, if there is one."""
        pass_ = self.finetuning
        return PassMessage.of(**self._message(values, pass_, FINETUNING)) if pass_ else None

    def samples(self, client: int, *, tuned: bool) -> int:
        """Return the samples that a client trains on, each time, for what it deploys."""
        works = [*self.passes, *([self.finetuning] if tuned and self.finetuning else [])]
        size, batching = self.sizes[[client]], self.settings.local.batching
        return sum(int(samples_of(pass_.epochs_of(client), size, batching)[0]) for pass_ in works)

    def _message(self, values: RoundValues, pass_: Pass, number: int) -> dict[str, Any]:
        return {
            "pass_": values.on(pass_),
            "values": values.of_clients(pass_.clients),
            "round_number": self.committed.number,
            "pass_number": number,
            "uniform": True,
            "total_weight": 0,
        }


def _after(method: Method, *asked: Any) -> tuple[Pass, ...]:
    """Return the passes of a deployment after the local training of a round."""
    works = call(method, Method.deployment_after, *asked)
    if works is None:
        raise SettingsError(
            f"evaluation.when=after: {called(method)} does not say what its clients deploy after"
            " a round's local training (deployment_after); use before"
        )
    return tuple(works)
