"""Down-link: stages code the model for clients; the server keeps the model that clients have.

Source: Gruntkowska, Tyurin and Richtarik, "EF21-P and Friends: Improved Theoretical Communication
Complexity for Distributed Optimization with Bidirectional Compression", ICML 2023, EF21-P.

    server:  v <- v + c(w - v), and broadcasts c(w - v)     v: the clients' model, w_0 at first
    client:  trains from v, sends D_k = w_k - v
    server:  w <- w + aggregate of the D_k

The part of w that is not sent stays in w - v. This is error feedback without extra memory; c must
be a contraction. raysim evaluates, deploys and checkpoints w; the checkpoint also holds v.

- Stages code the parameters of the group `model` of a pass if it is the server's model at the start
  of the round. Buffers are sent uncoded: running statistics replace those of the client, and would
  be wrong as differences. Other groups, and another model that a method broadcasts within a round,
  are sent uncoded, too.
- All passes of a round have the same v. A round without a pass broadcasts nothing.
- A client has the v of the last round in which its result counted. In its next round it receives
  all increments since then, and the buffers once, or v itself if that is fewer bytes. In its first
  round it receives v.
- If a method itself counts the bytes that clients receive (`Pass.bytes_down`), its number is taken
  to include the model if the pass is the round's first with the model and the number is at least
  the model's bytes. Other numbers do not change.
- A model whose tensors have other names or shapes than v is sent uncoded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from raysim.api.channel import Stages, declared, sent_bytes
from raysim.api.differences import Differences
from raysim.api.rules import Pass, Reduced, Upload, View
from raysim.config import Settings
from raysim.driver.uploads.channel import through_stages
from raysim.driver.uploads.dispatch import Dispatch, UploadStep
from raysim.errors import SettingsError
from raysim.numbers.encoding import Encoded
from raysim.numbers.seeds import owned_generator
from raysim.numbers.tensors import (
    Groups,
    Layout,
    Tensors,
    flatten,
    nbytes,
    only,
    parameter_names,
    without,
)
from raysim.storage.run_state import RunState

MODEL, BYTES = "model", "bytes"
"""Groups in a checkpoint: v, and the bytes of increments without buffers."""
SERVER = -1
"""Number in place of a client's."""


@dataclass
class Downlink:
    """Down-link of one round.

    Attributes:
        settings: The run's settings.
        network: The network as it was built.
        before: The committed state before the round.
        state: The server's state for the down-link; `before_pass` replaces it by the next one.
    """

    settings: Settings
    network: nn.Module
    before: RunState
    state: Groups = field(init=False)
    _sent: Tensors | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.state = self.before.downlink

    def before_pass(self, dispatch: Dispatch) -> Dispatch:
        """Return a pass whose clients start from v."""
        if not self._is_coded(dispatch):
            return dispatch
        if first := self._sent is None:
            self._sent = dispatch.broadcast[MODEL]
            self._send(self._sent)
        known = self.state[MODEL]
        model = {name: known.get(name, t) for name, t in dispatch.broadcast[MODEL].items()}
        sent = replace(dispatch, broadcast={**dispatch.broadcast, MODEL: model})
        if first or not dispatch.bytes_down:
            sent = replace(sent, bytes_down=partial(self._received_bytes, dispatch, known))
        return sent.with_step(UploadStep(server=partial(self._received, sent, self._sent)))

    def _received(self, dispatch: Dispatch, server: Tensors, reduced: Reduced) -> Reduced:
        """Return the result as if clients had started from the server's model."""
        bases = {group: base for group, base in dispatch.moved_from.items() if base == MODEL}
        differences = Differences.of(reduced.means, bases, dispatch.broadcast)
        model = {**dispatch.broadcast[MODEL], **server}
        return replace(reduced, means=differences.moved_to(bases, {MODEL: model}))

    def _is_coded(self, pass_: Pass) -> bool:
        """Return whether a pass broadcasts the server's model at the start of the round."""
        model_now, model = self.before.state.groups.get(MODEL, {}), pass_.broadcast.get(MODEL, {})
        return (
            not pass_.pooled
            and bool(model)
            and all(
                name in model_now
                and (tensor is model_now[name] or torch.equal(tensor, model_now[name]))
                for name, tensor in model.items()
            )
        )

    def _send(self, model: Tensors) -> None:
        """Move v towards the model, and count the bytes of the increment."""
        known, increment = self.state.get(MODEL, {}), nbytes({MODEL: model})
        if _layout(known) == _layout(model):
            number = self.before.number
            source = partial(owned_generator, self.settings.seed, "downlink", (number,))
            known, increment = coded(self.settings.down_stages, model, known, source, self.network)
        else:
            known = model
        increment -= self._beside(model)
        counted = self.state.get(BYTES, {}).get(BYTES, torch.zeros(1, dtype=torch.int64))
        idle = counted[-1:].expand(self.before.number + 1 - len(counted))  # rounds without passes
        counted = torch.cat([counted, idle, counted[-1:] + increment])
        self.state = {MODEL: known, BYTES: {BYTES: counted}}

    def _beside(self, model: Tensors) -> int:
        """Return the bytes of the model's buffers, which are sent uncoded."""
        parameters = parameter_names(self.network)
        return nbytes({MODEL: without(model, parameters)})

    def _received_bytes(self, pass_: Pass, known: Tensors, client: int) -> int:
        """Return the bytes that a client receives.

        Args:
            pass_: The pass of the method.
            known: v.
            client: The client.
        """
        whole = nbytes({MODEL: known})
        coded_bytes = pass_.bytes_down(client) if pass_.bytes_down else nbytes(pass_.broadcast)
        if coded_bytes < whole:
            return coded_bytes
        counted, last = self.state[BYTES][BYTES], self.before.history.last_round[client]
        missed = self._beside(known) + int(counted[-1] - counted[last])
        return coded_bytes - whole + min(whole, missed)


def coded(
    stages: Stages, model: Tensors, known: Tensors, source: Any, network: nn.Module
) -> tuple[Tensors, int]:
    """Return v after the next broadcast, and the bytes of the increment.

    Args:
        stages: The stages.
        model: The server's model.
        known: v, with the same names and shapes.
        source: `source(purpose)` returns a generator.
        network: The network.

    Raises:
        SettingsError: a stage fails, or keeps or reports values of a client.
    """
    differences = _differences(model, known, network)
    view = View(
        params=model,
        trainable=(),
        start=known,
        broadcast={MODEL: known},
        state={},
        personal={},
        generator=source,
        pass_generator=source,
        at=_not_here,
        gradient=_not_here,
        client=SERVER,
    )
    named = tuple(stages.items()) if differences.changes else ()
    sent = through_stages(named, view, Upload(sums=differences.changes), differences.layout)
    if beside := [*sent.state, *sent.scalars]:
        raise SettingsError(
            "downlink: a stage of the down-link must not keep or report values of a client; has"
            f" {min(beside)!r}"
        )
    after = differences.means_with(sent.changes)[MODEL] if differences.changes else dict(model)
    total = nbytes({MODEL: model})
    return after, sent_bytes(sent.encoded, total)


def expected_bytes(stages: Stages, model: Tensors, network: nn.Module) -> int:
    """Return the bytes of a model's increment, as the stages declare them."""
    whole = nbytes({MODEL: model})
    encoded = Encoded.of(_differences(model, model, network).layout, ())
    return min(whole, sent_bytes(declared(stages, encoded, SERVER), whole))


def _differences(model: Tensors, known: Tensors, network: nn.Module) -> Differences:
    """Return the differences between a model's parameters and v."""
    known = only(known, parameter_names(network))
    return Differences.of({MODEL: model}, {MODEL: MODEL}, {MODEL: known})


def _layout(tensors: Tensors) -> Layout:
    return Layout.of(flatten({MODEL: dict(sorted(tensors.items()))}))


def _not_here(*arguments: Any, **options: Any) -> Any:
    raise SettingsError("a stage of the down-link must not run the network")
