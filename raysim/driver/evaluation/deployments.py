"""Models that clients deploy, built for an evaluation and dropped afterwards.

A client builds its model in one or several passes of the method, and may then fine-tune it. The
numbers of these passes are below 0, so that a round's passes draw other numbers.
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
"""Number of a deployment's first pass, and of the fine-tuning; later passes count down."""


@dataclass(frozen=True)
class Deployment:
    """Passes that build the deployed models of the evaluated clients after a round.

    Attributes:
        settings: The run's settings.
        sizes: Samples that each client trains on [K].
        committed: The evaluated state.
        passes: The passes over the clients; empty if they deploy the global model.
        finetuning: The pass that fine-tunes the deployed models; None without one.
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
        """Get the passes from the method.

        Args:
            settings: The run's settings.
            network: The network as it was built.
            sizes: Samples that each client trains on [K].
            committed: The evaluated state.
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
        """Return the arguments of the messages for `passes`."""
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
        """Return the message for `finetuning`; None without one."""
        pass_ = self.finetuning
        return PassMessage.of(**self._message(values, pass_, FINETUNING)) if pass_ else None

    def samples(self, client: int, *, tuned: bool) -> int:
        """Return the number of samples that a client trains on to build its deployed model."""
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
            f"evaluation.when=after: {called(method)} does not define what clients deploy after"
            " the local training of a round (deployment_after); use before"
        )
    return tuple(works)
