"""FedMA against NumPy at partial participation, unequal steps and settings of one's own.

The oracle matches by trying every assignment.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import permutations

import numpy as np
import pytest
from torch import nn

from tests.methods.fedma.test_method import Chain
from tests.methods.reference import Reference
from tests.methods.test_oracle import assert_close, start_of

WIDTHS = (4, 3)
LAYERS = ("features.1", "hidden.0", "head")
NAMES = [f"{layer}.{kind}" for layer in LAYERS for kind in ("weight", "bias")]


def narrow():
    """Two matched layers."""
    return Chain(
        nn.Sequential(nn.Flatten(), nn.Linear(12, WIDTHS[0]), nn.ReLU()),
        nn.Sequential(nn.Linear(*WIDTHS), nn.ReLU()),
        nn.Linear(WIDTHS[1], 3),
    )


@dataclass
class Matcher:
    """Matching of one layer, from the formulas of Yurochkin et al. 2019.

    Attributes:
        rows: Per client, its neurons [W, D].
        s: Precision of a client's neuron.
        s0: Precision of the prior.
        gamma: Readiness to make new atoms.
        limit: Atoms at most.
    """

    rows: list
    s: float
    s0: float
    gamma: float
    limit: int

    def match(self, sweeps=5):
        """The atom of every client's neurons."""
        everyone = range(len(self.rows))
        atoms = {0: list(range(len(self.rows[0])))}
        for client in everyone[1:]:
            atoms[client] = self.assign(atoms, client)
        for client in [*everyone] * sweeps:
            others = {k: own for k, own in atoms.items() if k != client}
            left = sorted({atom for own in others.values() for atom in own})
            others = {k: [left.index(atom) for atom in own] for k, own in others.items()}
            atoms = {**others, client: self.assign(others, client)}
        return [np.array(atoms[client]) for client in everyone]

    def assign(self, atoms, client):
        """The atoms of a client's neurons, given those of the other clients."""
        held = 1 + max(max(own) for own in atoms.values())
        members = [
            [self.rows[k][own.index(i)] for k, own in atoms.items() if i in own]
            for i in range(held)
        ]
        own = self.rows[client]
        new = range(1, 1 + min(len(own), self.limit - held))
        gains = np.array(
            [
                [self.joining(v, m) for m in members] + [self.founding(v, q) for q in new]
                for v in own
            ]
        )
        choices = np.array([*permutations(range(gains.shape[1]), len(own))])
        best = choices[gains[range(len(own)), choices].sum(1).argmax()]
        founded = iter(range(held, gains.shape[1]))
        return [int(atom) if atom < held else next(founded) for atom in best]

    def joining(self, v, members):
        """The gain of a neuron that joins an atom."""
        total, precision = self.s * sum(members), self.s0 + self.s * len(members)
        gain = (self.s * v + total) ** 2 / (self.s + precision) - total**2 / precision
        popular = min(len(members), 10)
        return gain.sum() + np.log(popular / (len(self.rows) - popular))

    def founding(self, v, number):
        """The gain of a neuron that founds an atom, the first, second, ... of its client."""
        gain = (self.s * v) ** 2 / (self.s + self.s0)
        return gain.sum() + 2 * np.log(self.gamma / len(self.rows)) - 2 * np.log(number)


@dataclass
class Oracle:
    """Rounds in NumPy.

    Attributes:
        reference: The run, and the training of its clients.
        sigma: Deviation of neurons around their atom.
        sigma0: Deviation of atoms around 0.
        gamma: Readiness to make new atoms.
        posterior: Whether atoms are the mean of their posterior.
        uniform: Whether clients count the same in the last layer.
    """

    reference: Reference
    sigma: float
    sigma0: float
    gamma: float
    posterior: bool
    uniform: bool

    def run(self):
        """The last weights, and the numbers of atoms of every round."""
        w, kept, widths = self.reference.start, {}, []
        popular = [range(width) for width in WIDTHS]
        for number, cohort in enumerate(self.reference.cohorts):
            starts = [cut(w, kept.get(client, popular)) for client in cohort]
            w, atoms = self.round(number, cohort, starts)
            kept = dict(zip(cohort, zip(*atoms, strict=True), strict=True))  # of this round alone
            members = [np.bincount(np.concatenate(own)) for own in atoms]
            popular = [
                sorted(np.argsort(-count, kind="stable")[:width])
                for count, width in zip(members, WIDTHS, strict=True)
            ]
            widths.append(tuple(len(count) for count in members))
        return w, widths

    def round(self, number, cohort, starts):
        """The next weights, and per layer the atoms of every client's neurons."""
        local = [self.reference.train(w, number, k) for w, k in zip(starts, cohort, strict=True)]
        matched, found = [], []
        for layer, width in enumerate(WIDTHS):
            at = 2 * layer
            rows = [np.hstack([w[at], w[at + 1][:, None]]) for w in local]
            beliefs = self.sigma**-2, self.sigma0**-2, self.gamma
            atoms = Matcher(rows, *beliefs, limit=int(1.5 * width)).match()
            joined = self.join(rows, atoms)
            matched += [joined[:, :-1], joined[:, -1]]
            local = [
                self.reference.train(
                    [*matched, place(w[at + 2], own, len(joined)), *w[at + 3 :]],
                    *(number, k),
                    index=layer + 1,
                    trained=range(at + 2, 6),
                )
                for w, k, own in zip(local, cohort, atoms, strict=True)
            ]
            found.append(atoms)
        counts = [np.bincount(self.reference.clients[k][1], minlength=3) for k in cohort]
        shares = np.ones((len(cohort), 3)) if self.uniform else np.array(counts)
        shares = shares / shares.sum(0)
        head = [np.einsum("jc,jc...->c...", shares, [w[i] for w in local]) for i in (4, 5)]
        return [*matched, *head], found

    def join(self, rows, atoms):
        """The weights and biases of the atoms."""
        members = [[] for _ in range(1 + max(map(max, atoms)))]
        for own, client in zip(atoms, rows, strict=True):
            for atom, row in zip(own, client, strict=True):
                members[atom].append(row)
        if not self.posterior:
            return np.array([np.mean(rows, axis=0) for rows in members])
        s, s0 = self.sigma**-2, self.sigma0**-2
        return np.array([s * sum(rows) / (s0 + s * len(rows)) for rows in members])


def cut(w, atoms):
    """A network of the first width, made of some atoms of the two layers."""
    first, second = (list(own) for own in atoms)
    return [w[0][first], w[1][first], w[2][second][:, first], w[3][second], w[4][:, second], w[5]]


def place(weights, atoms, width):
    """A layer's weights with their inputs moved to atoms; zero where there is none."""
    placed = np.zeros((len(weights), width))
    placed[:, atoms] = weights
    return placed


@pytest.mark.parametrize(
    ("gamma", "average", "weighting", "holdout"),
    [
        (1.5, "mean", "examples", 0),
        (1e-3, "mean", "uniform", 0),
        (2.5, "posterior", "examples", 0),
        (1.5, "mean", "examples", 0.3),
    ],
)
def test_rounds_equal_numpy(tmp_path, gamma, average, weighting, holdout):
    """Steps so large that neurons of clients grow apart: layers widen, and narrow again.

    Rows of the last layer are weighted by samples of their class, without those held out.
    """
    beliefs = {"sigma": 0.2, "sigma0": 0.5, "gamma": gamma}
    own = {f"method.{name}": value for name, value in beliefs.items()} | {"local.lr": 1.0}
    overrides = {"method.name": "fedma", "method.average": average, "weighting": weighting, **own}
    overrides["evaluation.holdout"] = holdout
    first = partial(start_of, names=NAMES)
    reference = Reference(tmp_path, overrides, model=narrow, first=first)
    options = {"posterior": average == "posterior", "uniform": weighting == "uniform"}
    expected, widths = Oracle(reference, **beliefs, **options).run()
    assert_close(reference.result.params, expected, NAMES)
    rows = reference.result.metrics.to_pylist()
    assert [(row["width_1"], row["width_2"]) for row in rows] == widths
    assert len({*widths}) > 1
