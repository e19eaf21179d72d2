"""Matching against literal loops over its formulas and over all matchings of tiny cases."""

from __future__ import annotations

from itertools import permutations
from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.methods.fedma.matching import Beliefs, founding_gains, joining_gains, match


def joining(v, members, clients, sigma, sigma0):
    """The gain of neuron v joining an atom, one weight at a time."""
    s, s0 = 1 / sigma**2, 1 / sigma0**2
    gain = 0.0
    for d in range(len(v)):
        g = sum(s * member[d] for member in members)
        precision = s0 + s * len(members)
        gain += (s * v[d] + g) ** 2 / (s + precision) - g**2 / precision
    popularity = min(len(members), 10)
    return gain + log(popularity / (clients - popularity))


def founding(v, q, clients, sigma, sigma0, gamma):
    s, s0 = 1 / sigma**2, 1 / sigma0**2
    gain = sum((s * x) ** 2 / (s + s0) for x in v)
    return gain + 2 * log(gamma / clients) - 2 * log(q)


@pytest.mark.parametrize("clients", [4, 12, 30])
@pytest.mark.parametrize(("sigma", "sigma0", "gamma"), [(1.0, 1.0, 1e-3), (0.4, 3.0, 7.0)])
def test_gains_equal_a_double_loop(clients, sigma, sigma0, gamma):
    generator = np.random.default_rng(0)
    beliefs = Beliefs(sigma, sigma0, gamma)
    own = generator.normal(size=(5, 4))
    counts = [1, 3, min(clients - 1, 11)]
    atoms = [generator.normal(size=(count, 4)) for count in counts]
    sums = np.array([atom.sum(0) / sigma**2 for atom in atoms])
    measured = joining_gains(own, sums, np.array(counts), clients, beliefs)
    expected = [[joining(v, atom, clients, sigma, sigma0) for atom in atoms] for v in own]
    assert measured == pytest.approx(np.array(expected), rel=1e-10)
    measured = founding_gains(own, 3, clients, beliefs)
    expected = [[founding(v, q, clients, sigma, sigma0, gamma) for q in (1, 2, 3)] for v in own]
    assert measured == pytest.approx(np.array(expected), rel=1e-10)


def total_gain(first, second, chosen, beliefs):
    """The gain of assigning the second of two clients: atoms 0.. are the first one's neurons."""
    constants = beliefs.sigma, beliefs.sigma0
    total, founded = 0.0, 0
    for v, atom in zip(second, chosen, strict=True):
        if atom < len(first):
            total += joining(v, [first[atom]], 2, *constants)
        else:
            founded += 1
            total += founding(v, founded, 2, *constants, beliefs.gamma)
    return total


@settings(max_examples=60, deadline=None)
@given(
    key=st.integers(0, 10_000),
    sizes=st.tuples(st.integers(2, 4), st.integers(1, 4)).filter(lambda s: s[0] >= s[1]),
    scale=st.sampled_from([0.3, 1.0, 4.0]),
    gamma=st.sampled_from([1e-3, 1.0, 50.0]),
    spare=st.integers(0, 4),
)
def test_two_clients_are_matched_for_the_largest_gain(key, sizes, scale, gamma, spare):
    generator = np.random.default_rng(key)
    first, second = (scale * generator.normal(size=(size, 3)) for size in sizes)
    beliefs, limit = Beliefs(gamma=gamma), len(first) + spare
    matching = match([first, second], beliefs, sweeps=0, limit=limit)
    places = min(limit, len(first) + len(second))
    best = max(
        total_gain(first, second, chosen, beliefs)
        for chosen in permutations(range(places), len(second))
    )
    chosen = matching.assigned[1]
    assert matching.assigned[0].tolist() == list(range(len(first)))
    assert total_gain(first, second, chosen, beliefs) == pytest.approx(best, abs=1e-9)
    assert len(matching.members) <= limit


@settings(max_examples=40, deadline=None)
@given(
    key=st.integers(0, 10_000),
    widths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    gamma=st.sampled_from([1e-3, 1e3]),
    sweeps=st.integers(0, 3),
)
def test_what_holds_for_every_matching(key, widths, gamma, sweeps):
    """A client's neurons have distinct atoms, every atom has members, and the limit is kept."""
    generator = np.random.default_rng(key)
    rows = [3 * generator.normal(size=(width, 2)) for width in widths]
    limit = max(widths) + key % 4
    matching = match(rows, Beliefs(gamma=gamma), sweeps, limit)
    counts = np.zeros(len(matching.members), dtype=int)
    for width, atoms in zip(widths, matching.assigned, strict=True):
        assert len(set(atoms.tolist())) == width
        counts[atoms] += 1
    assert counts.tolist() == matching.members.tolist()
    assert counts.min() >= 1 and len(counts) <= limit


@pytest.mark.parametrize("clients", [1, 2, 3, 12, 25])
def test_permuted_copies_are_matched_back(clients):
    generator = np.random.default_rng(clients)
    rows = generator.normal(size=(8, 5))
    orders = [generator.permutation(8) for _ in range(clients)]
    matching = match([rows[order] for order in orders], Beliefs(), sweeps=2, limit=12)
    assert matching.members.tolist() == [clients] * 8
    atom_of = matching.assigned[0][np.argsort(orders[0])]  # per neuron of the original
    for order, atoms in zip(orders, matching.assigned, strict=True):
        assert atoms.tolist() == atom_of[order].tolist()


def test_foreign_neurons_found_atoms_until_the_limit():
    near, far = np.eye(4)[:2] * 5, -np.eye(4)[2:] * 50
    grown = match([near, far], Beliefs(), sweeps=2, limit=4)
    assert grown.members.tolist() == [1, 1, 1, 1]
    held = match([near, far], Beliefs(), sweeps=2, limit=3)
    assert sorted(held.members.tolist()) == [1, 1, 2]
    same = match([near, far], Beliefs(), sweeps=2, limit=2)
    assert same.members.tolist() == [2, 2]


def test_the_client_with_most_neurons_comes_first():
    generator = np.random.default_rng(3)
    rows = [generator.normal(size=(width, 3)) for width in (2, 4, 4)]
    matching = match(rows, Beliefs(gamma=1e-9), sweeps=0, limit=8)
    assert matching.assigned[1].tolist() == [0, 1, 2, 3]
    assert len(matching.members) == 4


def test_a_sweep_mends_an_early_mistake():
    """A client that came first is assigned anew once the others are there."""
    generator = np.random.default_rng(1)
    base = generator.normal(size=(6, 8))
    rows = [base + noise * generator.normal(size=base.shape) for noise in (2.0, 0.1, 0.1, 0.1, 0.1)]
    greedy = match(rows, Beliefs(), sweeps=0, limit=6)
    swept = match(rows, Beliefs(), sweeps=3, limit=6)
    clean = [atoms.tolist() for atoms in swept.assigned[1:]]
    assert all(atoms == clean[0] for atoms in clean)

    def spread(matching):
        members = [[] for _ in matching.members]
        for own, atoms in zip(rows, matching.assigned, strict=True):
            for v, atom in zip(own, atoms, strict=True):
                members[atom].append(v)
        return sum(np.var(atom, axis=0).sum() * len(atom) for atom in members)

    assert spread(swept) <= spread(greedy)
