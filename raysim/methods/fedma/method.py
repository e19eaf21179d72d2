"""FedMA: layers are averaged one after another, after their neurons have been matched.

Source: Wang et al., "Federated Learning with Matched Averaging", ICLR 2020, algorithm 1 and section
2.2 (LSTMs), with the matching of Yurochkin et al. 2019 (`raysim.methods.fedma.matching`). A round
is one pass over the layers n = 1..L of the cohort's networks:

    train everything; for n = 1..L-1:
        up:     every client's layer n: its neurons, with bias, inputs as layer n-1 was matched
        server: match; an atom is the mean of its members (or G/S with average="posterior")
        down:   the matched layer, and to every client the atoms of its neurons
        client: take it in, freeze layers 1..n, move the inputs of layer n+1 to the atoms (0 where
                it has no neuron), train layers n+1..L for `local.epochs`
    layer L: row i, of class i, and its bias are averaged by the clients' samples of class i

Hidden states of an LSTM are matched by their input weights and biases of the four gates, and share
one permutation across the gates, the recurrent side and the next layer's inputs. No layer exceeds
`max_width` times its first width. In the next round every client starts from a network of the
first width, made of the atoms that its neurons were matched to.

A client sends its last layer with the counts n_ji of its training samples of each class i, four
bytes a class; row i becomes sum_j n_ji row_ji / sum_j n_ji over the clients j that arrived. The
samples of all classes count instead for a class without samples, for a head of one logit, and for a
task that is no classification. weighting=uniform takes 1/J, as the authors' LSTM code does.

`rounds` counts passes over the layers; a pass is L communication rounds of FedAvg's kind. The
authors' code has gamma=7 and average="posterior" for VGG9, gamma=1e-3 and "mean" for the LSTM.

Choices: layers are in forward order; an embedding is a layer, its dimensions are neurons. Every
round makes new atoms, so a client that did not take part in the round before holds no valid
assignment and starts from the atoms with most members (ties by index). Clients that took part hold
the matched layers, so next time they receive the last layer alone; an assignment counts four bytes
a neuron. A client that is dropped in mid-pass leaves its atoms; an atom without members keeps its
value. Deviations from the authors' code: the prior mean is 0, clients are taken in order of id
instead of at random, and the number of atoms has a limit. In the tables `width_1` to `width_L-1`
are the layers' numbers of atoms.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from raysim.api.columns import Column
from raysim.api.method import Method, Passes, Round, ServerState
from raysim.api.rules import Batch, Pass, Reduced, Rules, Trained, Upload, View
from raysim.errors import SettingsError
from raysim.methods.fedma import neurons
from raysim.methods.fedma.matching import Beliefs, Matching, match
from raysim.methods.fedma.neurons import Chain
from raysim.numbers.tensors import Groups, Tensors, nbytes, state_of
from raysim.user_input.limits import MOST

ATOM_BYTES = 4


class FedMa(Method):
    """Mean of the clients' matched neurons, layer by layer.

    Helps where clients' data differ so much that the same neuron learns different things: averages
    by position then cancel out. For chains of fully connected, convolutional, or embedding and LSTM
    layers without normalisation. Against FedAvg, with L layers: L times the local training (on ever
    fewer layers), L passes a round, models of up to `max_width` times the size, the cohort's layers
    in the server's memory and a cubic assignment in the layers' width; each layer travels once up
    and down a round, as in FedAvg, and a client that missed the round before receives the model
    once more.
    """

    changes_shapes: ClassVar[bool] = True
    staged: ClassVar[bool] = True
    columns: ClassVar[Sequence[Column]] = (Column("width", numbered=True),)
    real: ClassVar[bool] = True
    own_server: ClassVar[str] = "matches neurons, and their number changes"
    own_round: ClassVar[str] = "a pass over the layers, with a trip to the clients for each layer"

    sigma: float = Field(default=1.0, gt=0, description="deviation of neurons around their atom")
    sigma0: float = Field(default=1.0, gt=0, description="deviation of atoms around 0")
    gamma: float = Field(default=1e-3, gt=0, description="readiness to make new atoms")
    sweeps: int = Field(
        default=5, ge=0, le=MOST, description="passes that match every client again"
    )
    max_width: float = Field(
        default=1.5, ge=1, le=MOST, description="limit of a layer over its first width"
    )
    average: Literal["mean", "posterior"] = Field(
        default="mean", description="weights of an atom: mean of its members, or of its posterior"
    )
    # no kept optimizer: its passes train other parameters from round to round
    needs_local: ClassVar[Mapping[str, object]] = {"keep": False}

    def moved(self, model: nn.Module) -> Collection[str]:
        """Return the names of all frozen parameters, because the server sorts their neurons.

        Clients send these, too, because they are matched by the values of all clients.
        """
        return [name for name, p in model.named_parameters() if not p.requires_grad]

    def network(self, model: nn.Module) -> nn.Module:
        """Let LSTMs follow the size of their weights, as other layers do by themselves."""
        for module in model.modules():
            if isinstance(module, nn.LSTM):
                module.register_forward_pre_hook(_fit_sizes)
        return model

    def init(self, network: nn.Module) -> ServerState:
        """Describe the layers.

        Raises:
            SettingsError: the network is no chain of layers that can be matched.
        """
        try:
            chain = neurons.chain_of(network)
        except ValueError as error:
            raise SettingsError(f"method.name={self.title}: {error}") from error
        members = {str(n): torch.ones(chain[n].width).long() for n in range(len(chain) - 1)}
        model = {name: tensor.clone() for name, tensor in state_of(network).items()}
        return ServerState({"model": model, "members": members})

    def client_bytes(self, state: ServerState) -> int:
        """Return the bytes of the atoms that a client was matched to, which it keeps."""
        return sum(ATOM_BYTES * len(members) for members in state.groups["members"].values())

    def round_state_bytes(self, state: ServerState) -> int:
        """Return the bytes of the layers that are not matched yet, and of the atoms."""
        return nbytes({"model": state.groups["model"]}) + self.client_bytes(state)

    def round(self, now: Round, state: ServerState) -> Passes:
        """Train, then match layer after layer, training the later layers in between."""
        chain = neurons.chain_of(now.network)
        if now.weighting not in ("examples", "uniform"):
            raise SettingsError(
                f"weighting={now.weighting}: must be examples or uniform with method.name=fedma,"
                " which weighs clients by their samples of each class"
            )
        reduced = yield _first_pass(now, chain, state)
        matched: dict[str, Tensor] = {}
        assigned: list[dict[int, Tensor]] = []
        for number in range(len(chain) - 1):
            matching, layer = self._match(chain, number, reduced)
            matched |= layer
            by_client = map(torch.from_numpy, matching.assigned)
            atoms = dict(zip(reduced.clients, by_client, strict=True))
            assigned.append(atoms)
            pass_ = replace(
                _pass(now, chain, number + 1, reduced.clients, matched),
                personal={c: {"atoms": {str(number): a.int()}} for c, a in atoms.items()},
                bytes_down=partial(_constant, nbytes({"model": layer})),
            )
            reduced = yield pass_
        last = [reduced.rows[client] for client in reduced.clients]
        members = {str(n): _members(atoms, reduced.clients) for n, atoms in enumerate(assigned)}
        groups = {
            "model": matched | mean_by_class(last, uniform=now.weighting == "uniform"),
            "members": members,
            "recent": {"clients": torch.tensor(reduced.clients, dtype=torch.int64)},
        }
        widths = {f"width_{int(n) + 1}": float(len(group)) for n, group in members.items()}
        return ServerState(groups), widths

    def _match(
        self, chain: Chain, number: int, reduced: Reduced
    ) -> tuple[Matching, dict[str, Tensor]]:
        """Match a layer; return the matching and the layer of its atoms."""
        layers = [reduced.rows[client]["layer"] for client in reduced.clients]
        beliefs = Beliefs(self.sigma, self.sigma0, self.gamma)
        matching = match(
            [neurons.rows(chain, number, layer).numpy() for layer in layers],
            beliefs,
            self.sweeps,
            limit=int(round(self.max_width * chain[number].width, 9)),
        )
        count = torch.from_numpy(matching.members).double()
        s, s0 = beliefs.precision, beliefs.prior_precision
        shares = 1 / count if self.average == "mean" else s / (s0 + s * count)
        atoms = [torch.from_numpy(assigned) for assigned in matching.assigned]
        return matching, neurons.join(chain, number, layers, atoms, shares)


def _pass(
    now: Round, chain: Chain, number: int, clients: Sequence[int], broadcast: Tensors
) -> Pass:
    """Return the pass that trains the layers from `number` on and sends that layer up."""
    start = partial(_take_in if number else _rebuild, chain, number)
    rules = Rules(start=start, finish=partial(_send, chain, number))
    trained = frozenset(name for layer in chain[number:] for name in layer.sides)
    return Pass(clients, {"model": broadcast}, rules, now.epochs, now.lr, trained)


def _first_pass(now: Round, chain: Chain, state: ServerState) -> Pass:
    """Return the pass that trains everything; clients of the last round lack the last layer."""
    model, recent = state.groups["model"], frozenset[int]()
    if "recent" in state.groups:
        recent = frozenset(state.groups["recent"]["clients"].tolist())
    popular = _most_popular(chain, state.groups["members"])
    whole, last = (nbytes({"model": tensors}) for tensors in (model, _of(model, chain[-1:])))
    return replace(
        _pass(now, chain, 0, now.cohort, model),
        personal={client: {"atoms": popular} for client in now.cohort if client not in recent},
        bytes_down=lambda client: last if client in recent else whole,
    )


def _rebuild(
    chain: Chain, number: int, broadcast: Groups, state: Groups, personal: Groups
) -> Tensors:
    """Start a round from the atoms that the server names, or else from the client's last ones."""
    atoms = (personal or state)["atoms"]
    return neurons.take(chain, broadcast["model"], {int(n): index for n, index in atoms.items()})


def _take_in(
    chain: Chain, number: int, broadcast: Groups, state: Groups, personal: Groups
) -> Tensors:
    """Insert the matched layers, and move the inputs of the layer after them to the atoms."""
    before, matched = number - 1, broadcast["model"]
    name, (side, *_) = next(iter(chain[before].sides.items()))
    atoms, width = personal["atoms"][str(before)].long(), side.width(matched[name])
    return {**matched, **neurons.place(chain, state["model"], before, atoms, width)}


def _send(chain: Chain, number: int, view: View, trained: Trained) -> Upload:
    """Send a layer up; keep those after it, and the atoms so far, for the next pass."""
    layer = _of(view.params, chain[number : number + 1])
    if not number:
        return Upload(rows={"layer": layer}, round_state={"model": _of(view.params, chain[1:])})
    atoms = {
        "atoms": {**(view.state.get("atoms", {}) if number > 1 else {}), **view.personal["atoms"]}
    }
    if number == len(chain) - 1:
        samples = samples_by_class(trained.data, chain[-1].width)
        return Upload(rows={"layer": layer, "classes": {"samples": samples}}, state=atoms)
    rest = _of(view.params, chain[number + 1 :])
    return Upload(rows={"layer": layer}, round_state={**atoms, "model": rest})


def samples_by_class(data: Batch, classes: int) -> Tensor:
    """Return the samples of each class [C]; all of them for outputs that are no classes."""
    if classes > 1 and data.scoring.classifies:
        return torch.bincount(data.y, minlength=classes).int()
    return torch.full((classes,), len(data.y), dtype=torch.int32)


def mean_by_class(clients: Sequence[Groups], uniform: bool) -> dict[str, Tensor]:
    """Return the mean of last layers, row by row.

    Args:
        clients: Per client, its `layer` (tensors [C, ...]) and its samples of `classes` [C].
        uniform: Whether every client counts the same, or else by its samples of a row's class.
    """
    counts = torch.stack([client["classes"]["samples"].double() for client in clients])  # [J, C]
    weights = torch.where(counts.sum(0) > 0, counts, counts.sum(1, keepdim=True))
    if uniform:
        weights = torch.ones_like(counts)
    shares = weights / weights.sum(0)
    means = {}
    for name, tensor in clients[0]["layer"].items():
        rows = torch.stack([client["layer"][name].double() for client in clients])  # [J, C, ...]
        mean = (shares[:, :, None] * rows.view(*shares.shape, -1)).sum(0)
        means[name] = mean.view(tensor.shape).to(tensor.dtype)
    return means


def _members(atoms: Mapping[int, Tensor], clients: Sequence[int]) -> Tensor:
    """Return the number of members of each atom [A]."""
    count = 1 + max(int(client_atoms.max()) for client_atoms in atoms.values())
    return torch.bincount(torch.cat([atoms[client] for client in clients]), minlength=count)


def _of(tensors: Tensors, layers: Chain) -> dict[str, Tensor]:
    return {name: tensors[name] for layer in layers for name in layer.sides}


def _constant(size: int, client: int) -> int:
    return size


def _most_popular(chain: Chain, members: Tensors) -> dict[str, Tensor]:
    """Return per layer the atoms with most members, as many as its first width, ascending."""
    popular = {}
    for number, count in members.items():
        ranked = torch.argsort(count, descending=True, stable=True)
        popular[number] = ranked[: chain[int(number)].width].sort().values.int()
    return popular


def _fit_sizes(module: nn.LSTM, _: object) -> None:
    inputs, hidden = (weight.shape[1] for weight in module.all_weights[0][:2])
    if (module.hidden_size, module.input_size) != (hidden, inputs):
        module.hidden_size, module.input_size = hidden, inputs
        module.flatten_parameters()  # as cuDNN wants them
