"""Matching of equal neurons of several clients (BBP-MAP).

Source: Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019
(PFNM), as used layer by layer in Wang et al., "Federated Learning with Matched Averaging", ICLR
2020 (FedMA). Every neuron is a row v of D weights. An atom is a neuron of the matched layer; its
members are at most one neuron of every client. With J clients, s = 1/sigma^2,
s0 = 1/sigma0^2 and prior mean 0, an atom i has the summed weights G_i = sum of s v over its
members, the precision S_i = s0 + s * members, and the popularity c_i = min(members, 10):

    gain of joining atom i = sum_d [(s v + G_i)^2 / (s + S_i) - G_i^2 / S_i] + log(c_i / (J - c_i))
    gain of the q-th new atom = sum_d [(s v)^2 / (s + s0)] + 2 log(gamma / J) - 2 log(q)

A client's neurons are assigned so that the total gain is largest. The first atoms are the neurons
of the client with most neurons; the other clients follow in order. Then, `sweeps` times, each
client in turn is removed, with the atoms that only it has, and assigned again. All is in float64,
without random draws.

Legend: J clients, W neurons of a client, A atoms, D weights of a neuron, Q new atoms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from raysim.numbers.arrays import Floats, Integers

POPULARITY_CAP = 10


@dataclass(frozen=True)
class Beliefs:
    """Constants of the model that the gains rest on.

    Attributes:
        sigma: Standard deviation of a client's neuron around its atom.
        sigma0: Standard deviation of atoms around 0.
        gamma: Readiness to make new atoms.
    """

    sigma: float = 1.0
    sigma0: float = 1.0
    gamma: float = 1e-3

    @property
    def precision(self) -> float:
        """Precision s of a client's neuron."""
        return self.sigma**-2

    @property
    def prior_precision(self) -> float:
        """Precision s0 of the prior."""
        return self.sigma0**-2


@dataclass(frozen=True)
class Matching:
    """Atoms of a layer, and the clients' neurons among them.

    Attributes:
        assigned: For each client, the atom of each of its neurons [W].
        members: For each atom, the number of its members [A].
    """

    assigned: tuple[Integers, ...]
    members: Integers


def match(rows: Sequence[Floats], beliefs: Beliefs, sweeps: int, limit: int) -> Matching:
    """Match the neurons of all clients.

    Args:
        rows: For each client, its neurons' weights [W, D].
        beliefs: Constants of the model.
        sweeps: Passes that assign every client again.
        limit: Most atoms, no fewer than the neurons of any client.
    """
    first = max(range(len(rows)), key=lambda client: len(rows[client]))
    assigned = {first: np.arange(len(rows[first]))}
    for client in range(len(rows)):
        if client != first:
            assigned[client] = _assign(rows, assigned, client, beliefs, limit)
    for _ in range(sweeps if len(rows) > 1 else 0):
        before = assigned
        for client in range(len(rows)):
            others = _renumbered({k: a for k, a in assigned.items() if k != client})
            assigned = {**others, client: _assign(rows, others, client, beliefs, limit)}
        if all(np.array_equal(before[k], assigned[k]) for k in before):
            break
    ordered = tuple(assigned[client] for client in range(len(rows)))
    return Matching(ordered, np.bincount(np.concatenate(ordered)))


def joining_gains(
    rows: Floats, sums: Floats, members: Integers, clients: int, beliefs: Beliefs
) -> Floats:
    """Return the gain of every neuron joining every atom [W, A].

    Args:
        rows: One client's neurons [W, D].
        sums: The atoms' summed weights G [A, D].
        members: The atoms' members among the other clients [A].
        clients: J.
        beliefs: Constants of the model.
    """
    s = beliefs.precision
    held = beliefs.prior_precision + s * members  # S [A]
    before = np.square(sums).sum(1)  # [A]
    crossed = 2 * s * (rows @ sums.T)  # [W, A]
    joined = s**2 * np.square(rows).sum(1)[:, None] + crossed + before
    popularity = np.minimum(members, POPULARITY_CAP)
    gains: Floats = (
        joined / (s + held) - before / held + np.log(popularity / (clients - popularity))
    )
    return gains


def founding_gains(rows: Floats, atoms: int, clients: int, beliefs: Beliefs) -> Floats:
    """Return the gain of every neuron founding the q-th new atom [W, Q], q = 1..Q."""
    s = beliefs.precision
    alone = s**2 * np.square(rows).sum(1) / (s + beliefs.prior_precision)  # [W]
    price = 2 * np.log(np.arange(1, atoms + 1)) - 2 * np.log(beliefs.gamma / clients)  # [Q]
    gains: Floats = alone[:, None] - price
    return gains


def _assign(
    rows: Sequence[Floats],
    assigned: Mapping[int, Integers],
    client: int,
    beliefs: Beliefs,
    limit: int,
) -> Integers:
    """Return the atoms of one client's neurons, given other clients' atoms."""
    neurons = rows[client]
    members = np.bincount(np.concatenate(list(assigned.values())))
    sums = np.zeros((len(members), neurons.shape[1]))
    for other, atoms in assigned.items():
        sums[atoms] += beliefs.precision * rows[other]  # a client's atoms are distinct
    new = min(len(neurons), limit - len(members))
    gains = np.hstack(
        [
            joining_gains(neurons, sums, members, len(rows), beliefs),
            founding_gains(neurons, new, len(rows), beliefs),
        ]
    )
    chosen: Integers = linear_sum_assignment(gains, maximize=True)[1].astype(np.int64)
    # Any order of the new atoms has the same total gain: they follow the neurons.
    founded = chosen >= len(members)
    chosen[founded] = len(members) + np.arange(founded.sum())
    return chosen


def _renumbered(assigned: Mapping[int, Integers]) -> dict[int, Integers]:
    """Drop atoms without members and number the others from 0, in order."""
    used = np.unique(np.concatenate(list(assigned.values())))
    return {client: np.searchsorted(used, atoms) for client, atoms in assigned.items()}
