"""DP-FTRL: differential privacy by noise that a binary tree correlates, without sampling.

Source: Kairouz, McMahan, Song, Thakkar, Thakurta and Xu, "Practical and Private (Deep) Learning
without Sampling or Shuffling", ICML 2021, algorithm 1 and appendix D; defaults of the authors' code
for federated learning (google-research/federated, dp_ftrl).

    client:  x_k = d_k * min(1, C / ||d_k||)            ||d_k|| over all that leaves, buffers too
    server:  s <- s + sum_k x_k / M                     M = m, the size of a cohort
             v <- momentum * v + (s + n_t)              n_t the tree's noise of the sum so far
             w <- w_0 + lr_server * v

A node of the tree has noise of deviation z * C / M (`raysim.methods.noise_tree`). Each client takes
part at most once in a tree, which this method's own selection ensures; so a client moves at most
one node of each height by its x_k, and cohorts need not be drawn at random for the privacy. After
`restart` rounds a tree ends, and the next begins at the model as it is: w_0 <- w with its noise,
s and v at 0. With `completion`, rounds without clients first complete the tree, and w gets the
noise of its root alone, which is less. The accounting includes these rounds.

As in the authors' code (`drop_remainder`), m clients take part in every round, and up to m - 1 are
left out of a tree. A round in which all clients are lost is no leaf: the model stays as it is.

Discrepancies: the authors' code for centralized learning keeps v and s over restarts; their code
for federated learning restarts both, as here.

Legend: d coordinates, of all tensors in the order of their names.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from raysim.api.components import called
from raysim.api.differences import Differences
from raysim.api.method import Round, ServerState
from raysim.api.privacy import NoiseTree, PrivacyClaim, multiplier_of
from raysim.api.rules import (
    CHANGE,
    Bases,
    Reduced,
    Rules,
    Trained,
    Upload,
    View,
    Weighting,
    send_model,
)
from raysim.api.selection import SELECTIONS, Selection
from raysim.errors import SettingsError
from raysim.methods.fedavg import FedAvg
from raysim.methods.noise_tree import Nodes, completed, next_prefix, noise_of
from raysim.numbers.tensors import (
    Tensors,
    as_real,
    clip_factor,
    like,
    nbytes,
    norm,
    standard_normal,
)
from raysim.user_input.limits import Count

SENT, SERVER, TREE = "change", "ftrl", "tree"
"""Groups: the clients' changes; the server's w_0, s and v; the nodes of its tree, by height."""


class DpFtrl(FedAvg):
    """FedAvg with differential privacy of clients that does not rest on random cohorts.

    Helps where clients cannot be sampled at random, and at strong noise: the noise of a sum over t
    rounds grows with log t, not with t. Costs the server, in float64, three models and up to
    log2(restart) + 1 of the tree, and two draws a round for each coordinate on average. Clients
    have FedAvg's costs.
    """

    own_server: ClassVar[str] = "makes each model from that at the start of its tree"
    weighting: ClassVar[Weighting | None] = "uniform"
    bases: ClassVar[Bases | None] = {SENT: CHANGE}

    clip: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="largest Euclidean norm C of a client's change"
    )
    noise: Annotated[float, Field(ge=0)] | None = Field(
        default=None,
        description="noise multiplier z: deviation of a node's noise over the clip; none: the least"
        " that keeps to epsilon, or 1 without one",
    )
    epsilon: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="largest epsilon: the run ends before a round that exceeds it"
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="delta of epsilon, at most 1/K")
    restart: Count | None = Field(
        default=None,
        description="rounds of a tree, in which a client takes part at most once; none: K // m",
    )
    efficient: bool = Field(default=True, description="Honaker's estimate of the nodes' sums")
    completion: bool = Field(
        default=False, description="complete a tree that ends by rounds without clients"
    )
    lr_server: float = Field(default=1.0, gt=0, description="learning rate of the server")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="momentum of the server")

    @model_validator(mode="after")
    def _epsilon_has_noise(self) -> Self:
        multiplier_of(self.noise, self.epsilon)
        return self

    @property
    def selection(self) -> Selection:
        """Each client at most once in a tree."""
        return SELECTIONS.get("reshuffled").model_validate({"rounds": self.restart})

    @property
    def privacy(self) -> PrivacyClaim | None:
        """The claim of its settings; None without noise."""
        noise = multiplier_of(self.noise, self.epsilon)
        if noise == 0:
            return None
        tree = NoiseTree(self.restart, self.completion)
        return PrivacyClaim(noise, self.epsilon, self.delta, "rdp", tree=tree)

    def with_noise(self, noise: float) -> Self:
        """Return this method with a noise multiplier."""
        return self.model_copy(update={"noise": noise})

    def init(self, network: nn.Module) -> ServerState:
        """Start from the network as it was built, with sums at 0.

        Raises:
            SettingsError: a tensor holds whole numbers, so noise cannot be added to it.
        """
        state = super().init(network)
        model = state.groups["model"]
        for name, tensor in model.items():
            if not (tensor.is_floating_point() or tensor.is_complex()):
                raise SettingsError(
                    f"{called(self)}: {name!r} holds whole numbers, as the counter of BatchNorm"
                    " does, so noise cannot be added to it; use a model without such tensors, for"
                    " example with GroupNorm"
                )
        return ServerState({**state.groups, SERVER: _at_start(model)}, {TREE: 0})

    def rules(self) -> Rules:
        """Return the rules of local training: plain SGD; clients send the clipped change."""
        return Rules(finish=partial(_send_clipped, self.clip))

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Move the model from that at the tree's start by the noisy sum since."""
        model = state.groups["model"]
        length = self.restart or now.clients // now.size
        number = now.number // length
        if number != state.info[TREE]:  # not at its end, as the last round may be lost
            state = state.replace(**{SERVER: _at_start(model), TREE: {}})
        kept = state.groups[SERVER]
        total = kept["s"]
        if SENT in reduced.means:  # a round without clients has none
            total = total + _vector(reduced.means[SENT])
        noisy, tree = total, dict[str, Tensor]()
        if noise := multiplier_of(self.noise, self.epsilon):
            ends = (now.number + 1) % length == 0
            nodes = self._nodes(now, state, total, complete=ends and self.completion)
            noisy = total + noise * self.clip / now.expected * noise_of(nodes, self.efficient)
            tree = {str(height): node for height, node in nodes.items()}
        speed = self.momentum * kept["v"] + noisy
        moved = _tensors(kept["w_0"] + self.lr_server * speed, model)
        server = {"w_0": kept["w_0"], "s": total, "v": speed}
        after = state.replace(**{"model": moved, SERVER: server, TREE: tree})
        return ServerState(after.groups, {TREE: number})

    def _nodes(self, now: Round, state: ServerState, sums: Tensor, *, complete: bool) -> Nodes:
        """Return the nodes of the tree after a round."""
        draws = partial(standard_normal, len(sums), now.generator("tree"))
        before = {int(height): node for height, node in state.groups.get(TREE, {}).items()}
        nodes = next_prefix(before, draws, self.efficient)
        return completed(nodes, draws, self.efficient) if complete else nodes


def _send_clipped(clip: float, view: View, trained: Trained) -> Upload:
    """Send the change of the model, scaled to the clip if it exceeds it."""
    sent = send_model(view, trained).sums
    differences = Differences.of(sent, {"model": "model"}, view.broadcast)
    change = differences.changes["model"]
    length = norm(change)
    factor = clip_factor(length, clip)
    return Upload(
        sums={SENT: {name: like(factor * d, sent["model"][name]) for name, d in change.items()}},
        metrics={"norm_to_clip": length},
        bytes_up=nbytes(sent),
    )


def _at_start(model: Tensors) -> dict[str, Tensor]:
    """Return the server's state at the start of a tree."""
    start = _vector(model)
    return {"w_0": start, "s": torch.zeros_like(start), "v": torch.zeros_like(start)}


def _vector(tensors: Tensors) -> Tensor:
    """Return tensors as one vector in float64 [d], in the order of names."""
    return torch.cat([as_real(t).reshape(-1).double() for _, t in sorted(tensors.items())])


def _tensors(vector: Tensor, model: Tensors) -> dict[str, Tensor]:
    """Return the tensors of a vector [d], in the shapes and dtypes of a model's."""
    ordered = sorted(model.items())
    parts = torch.split_with_sizes(vector, [as_real(t).numel() for _, t in ordered])
    return {
        name: like(part.view(as_real(t).shape), t).to(t.dtype)
        for (name, t), part in zip(ordered, parts, strict=True)
    }
