"""Masks against their formula: they cancel in sums, whoever is lost, and hide single clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest

from raysim import SecureSum, Upload
from raysim.channel.masks import Masks as Stage
from raysim.driver.uploads.masking import Masked
from raysim.execution.partial_sum import PartialSum
from raysim.numbers.encoding import Encoding
from raysim.numbers.masking import Masks, key_stream, words_of
from raysim.numbers.tensors import Layout

KEYS = (3, 5, 1)
SIZE = 40
clients = st.lists(st.integers(0, 99), min_size=1, max_size=12, unique=True)


def masks_of(agreed: Any, neighbours: int | None = None, threshold: float = 0.5) -> Masks:
    return Masks(SecureSum(neighbours, 32, threshold), KEYS, tuple(agreed))


def words(masks: Masks, of: Any, values: Any = 0, sign: int = 1) -> Any:
    total = np.zeros(SIZE, dtype=np.int64) + values
    masks.add_to([total[:7], total[7:]], of, sign=sign)
    return total


def drawn(purpose: str, *of: int) -> Any:
    raw = key_stream(KEYS[0], f"masks/{purpose}", *KEYS[1:], *of).update(bytes(8 * SIZE))
    return np.frombuffer(raw, np.int64)


def test_a_client_s_words_are_those_of_the_formula():
    for k in range(5):
        expected = np.full(SIZE, 7) + drawn("own", k)
        for j in range(5):
            if j != k:
                expected += np.sign(j - k) * drawn("pair", min(j, k), max(j, k))
        assert np.array_equal(words(masks_of(range(5)), [k], 7), expected)


@settings(max_examples=60)
@given(clients, st.sampled_from([None, 2, 4]), st.data())
def test_sums_of_any_parts_are_unmasked_without_those_that_are_lost(agreed, neighbours, data):
    """A part's words are those of its clients, added up; weights wrap around as well."""
    masks = masks_of(agreed, neighbours)
    present = data.draw(st.lists(st.sampled_from(agreed), min_size=1, unique=True))
    cut = data.draw(st.integers(0, len(present)))
    values = {client: np.arange(SIZE) * 2**57 * (client + 1) for client in present}
    total = np.zeros(SIZE, dtype=np.int64)
    for part in filter(None, (present[:cut], present[cut:])):
        sent = words(masks, part, sum(values[client] for client in part))
        assert np.array_equal(sent, sum(words(masks, [c], values[c]) for c in part))
        total += sent
    assert np.array_equal(words(masks, present, total, sign=-1), sum(values.values()))


@given(clients, st.sampled_from([None, 2, 4]), st.data())
def test_never_both_secrets_of_a_client_are_rebuilt(agreed, neighbours, data):
    """The graph is symmetric, and of the pairs of those that are lost it has all with others."""
    masks = masks_of(agreed, neighbours)
    present = data.draw(st.lists(st.sampled_from(agreed), min_size=1, unique=True))
    own, pairs = masks.rebuilt(present)
    assert {*own} == {*present}
    assert not {lost for _, lost in pairs} & {*own}
    everyone = {k: {j for _, j in masks.rebuilt([k]).pairs} for k in agreed}
    degree = len(agreed) - 1 if neighbours is None else min(neighbours, len(agreed) - 1)
    for k, near in everyone.items():
        assert len(near) == degree and all(k in everyone[j] for j in near)
        assert {j for client, j in pairs if client == k} == (near - {*own} if k in own else set())


def test_the_circle_of_neighbours_is_another_in_every_pass():
    circles = {
        tuple(sorted(Masks(SecureSum(2, 32, 0.5), (0, n, 0), tuple(range(20))).rebuilt([4]).pairs))
        for n in range(8)
    }
    assert len(circles) > 4


@pytest.mark.parametrize(
    ("agreed", "neighbours", "threshold", "left", "is_lost"),
    [
        (10, None, 0.5, 6, False),  # t = floor(n/2) + 1
        (10, None, 0.5, 5, True),
        (9, None, 2 / 3, 7, False),  # t = floor(2n/3) + 1
        (9, None, 2 / 3, 6, True),
        (2, None, 0.5, 1, True),
        (6, 2, 0.5, 5, False),  # two of a client and its two neighbours
        (6, 2, 0.9, 5, True),
    ],
)
def test_too_few_holders_of_a_secret_lose_the_sum(agreed, neighbours, threshold, left, is_lost):
    assert masks_of(range(agreed), neighbours, threshold).is_lost(range(left)) is is_lost


def test_secrets_must_be_rebuilt_of_clients_present_and_of_their_neighbours_alone():
    """In a circle a client's neighbours are lost: it alone holds its secret. Then it is lost."""
    near = {j for _, j in masks_of(range(8), 2).rebuilt([0]).pairs}
    left = {*range(8)} - near
    assert masks_of(range(8), 2, 0.5).is_lost(left)
    assert not masks_of(range(8), 2, 0.3).is_lost(left)
    assert not masks_of(range(8), 2, 0.3).is_lost(left - {0})  # of which nobody holds a share
    assert masks_of(range(8), 2, 0.5).is_lost(left - {0})  # of a neighbour's pair one does


@pytest.mark.parametrize(
    ("n", "values", "bits", "factor"),
    [(2**10, 2**20, 26, 1.73), (2**14, 2**24, 30, 1.98)],
)
def test_bytes_are_those_that_the_paper_prints(n, values, bits, factor):
    """Of Bonawitz et al., section 7: traffic of a client over its values in 16 bits."""
    stage = Stage(bits=bits)
    layout = Layout((("model/w", torch.float32, torch.Size([values])),))
    sent = stage.encoded(Encoding.of(layout), layout, 0).nbytes
    secure = stage.secure_sum
    beside = secure.beside(n)
    whole = sent + beside.up + beside.down
    assert whole / (2 * values) == pytest.approx(factor, abs=0.005)


def test_what_a_client_sends_says_nothing_of_its_update():
    """Its words pass two tests of uniformity, by each byte too, which its plain words fail."""
    generator = torch.Generator().manual_seed(0)
    upload = Upload(sums={"model": {"w": 0.1 * torch.randn(20_000, generator=generator)}})
    seen = {}
    for masks in (None, masks_of(range(10))):
        total = PartialSum(seal=masks and Masked(masks))
        total.add({"client": 4}, total.check(upload)(), 30, 100)
        total.leave()
        assert total.sum
        seen[masks is not None] = words_of(total.sum)[0].copy(), total.weight
    for masked, (found, weight) in seen.items():
        raw = found.view(np.uint64)
        p_values = [kstest(raw / 2.0**64, "uniform").pvalue]
        p_values += [
            chisquare(np.bincount((raw >> np.uint64(shift)).astype(np.uint8), minlength=256)).pvalue
            for shift in range(0, 64, 8)
        ]
        if masked:
            assert min(p_values) * len(p_values) > 1e-3
        else:
            assert max(p_values[0], p_values[-1]) < 1e-9
        assert (weight > 100) is masked
    hidden, plain = seen[True][0].astype(float), seen[False][0].astype(float)
    assert abs(np.corrcoef(hidden, plain)[0, 1]) < 4 / np.sqrt(20_000)
