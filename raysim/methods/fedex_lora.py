"""FedEx-LoRA: A and B are averaged, and the base takes what the mean of products has beyond theirs.

Source: Singhal, Ponkshe and Vepakomma, "FedEx-LoRA: Exact Aggregation for Federated and Efficient
Fine-Tuning of Large Language Models", ACL 2025, arXiv:2410.09432, equations 11 to 14; the authors'
code, github.com/RaghavSinghal10/fedex-lora, `fed_agg.py`.

    client k:  trains A_k, B_k from A, B, as in FedIT
    server:    A <- 1/m sum_k A_k        B <- 1/m sum_k B_k        over the m clients of the round
               W <- W + s (1/m sum_k B_k A_k - B A)

So W + s B A is the mean of the clients' W + s B_k A_k, up to rounding. W is the server's: it
computes W, and keeps it in its checkpoints. Clients receive A, B and, from the second round on, the
residue, which has the size of W. Other trained parts, such as a head, are averaged alike. The
authors' code adds the residue transposed, which is right for GPT-2's weights, [in, out], and wrong
for the square ones of linear layers, [out, in]; here it has the layer's orientation. The paper also
cuts the residue to a rank, which is not done here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

from raysim.api.method import Round, ServerState
from raysim.api.rules import Bases, Pass, Reduced, Trained, Upload, View, Weighting
from raysim.methods import partly_shared
from raysim.methods.adapted import PRODUCT, MovesBase
from raysim.methods.flora import merged
from raysim.numbers.adapters import Adapter, adapters_of
from raysim.numbers.tensors import nbytes, without


class FedExLora(MovesBase):
    """FedAvg of adapters, whose error against the mean of products goes into the base.

    Helps where means of A and of B lose too much: the mean is exact, and A and B go on from their
    means. Costs the base, which moves: it is in the server's state and its checkpoints, and from
    the second round on clients receive a matrix of the size of each adapted weight. Against FedAvg
    bytes up are the same.
    """

    own_server: ClassVar[str] = "moves the base by the error of its means"
    needs_mean: ClassVar[str] = "adapters, whose products are averaged"
    already_on_clients: ClassVar[str] = "the base of the first round"
    weighting: ClassVar[Weighting | None] = "uniform"
    bases: ClassVar[Bases | None] = {}

    def training_pass(self, now: Round, state: ServerState) -> Pass:
        """Return FedAvg's pass, whose clients also give the products of A and B."""
        pass_, moved = super().training_pass(now, state), self.moved(now.network)
        finish = partial(_finish, adapters_of(now.network), moved)
        still = without(pass_.broadcast["model"], moved)
        received = nbytes({"": still} if now.number == 0 else pass_.broadcast)
        return replace(
            pass_,
            rules=replace(pass_.rules, finish=finish),
            bytes_down=partial(_received, received),
        )

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Return the state with the means, and with weights that make up for their product."""
        model = {**state.groups["model"], **reduced.means["model"]}
        for adapter in adapters_of(now.network):
            means = {name: model[name].double() for name in (adapter.a, adapter.b)}
            mean = reduced.means[PRODUCT][adapter.b].double()
            model |= merged(adapter, model, adapter.scale * (mean - adapter.product(means)))
        return state.replace(model=model)


def _finish(
    adapters: tuple[Adapter, ...], moved: frozenset[str], view: View, trained: Trained
) -> Upload:
    """Send A and B with the other trained tensors; the server makes the products of them."""
    upload = partly_shared.finish(view, trained)
    model = without(upload.sums["model"], moved)
    products = {adapter.b: adapter.product(view.params) for adapter in adapters}
    sent = nbytes({"": model})
    return replace(upload, sums={"model": model, PRODUCT: products}, bytes_up=sent)


def _received(count: int, client: int) -> int:
    return count
