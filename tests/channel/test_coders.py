"""Stages that compress: against NumPy in float64, their bytes by hand, and what they promise."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import raysim
from raysim.api.channel import encoded_by
from raysim.api.components import build_component
from raysim.channel import STAGES
from raysim.numbers.encoding import Encoding
from raysim.numbers.seeds import torch_generator
from raysim.numbers.tensors import Layout

SHAPES = {"model": {"a": (6, 5), "b": (7,), "z": (3, 4, 2)}, "c": {"w": (9, 4)}}
SIZES = {group: [int(np.prod(s)) for s in of.values()] for group, of in SHAPES.items()}
Groups = dict[str, dict[str, np.ndarray]]


def stage_of(name: str, **fields: Any) -> raysim.Stage:
    return build_component(STAGES.get(name), fields, f"channel.{name}.")


def view_of(client: int = 3, dtype: torch.dtype = torch.float32, **state: Any) -> raysim.View:
    nothing: Any = None
    return raysim.View(
        params={"a": torch.zeros(1, dtype=dtype)},
        trainable=(),
        start={},
        broadcast={},
        state=state,
        personal={},
        at=nothing,
        gradient=nothing,
        generator=lambda purpose: torch_generator(7, f"client/{purpose}", client),
        pass_generator=lambda purpose: torch_generator(7, f"clients/{purpose}"),
        client=client,
    )


def changes(seed: int, *, zeros: float = 0.3) -> Groups:
    """Return differences with zeros and ties, in other scales by group."""
    draws = np.random.default_rng(seed)
    found: Groups = {}
    for scale, (group, of) in enumerate(SHAPES.items(), 1):
        found[group] = {}
        for name, shape in reversed(of.items()):
            values = np.round(draws.normal(size=shape), 1) * 10.0 ** (2 * scale)
            found[group][name] = np.where(draws.random(shape) < zeros, 0, values)
    return found


def sent(stage: raysim.Stage, given: Groups, view: raysim.View, encoding: Any = None) -> Groups:
    sums = {g: {n: torch.from_numpy(d) for n, d in of.items()} for g, of in given.items()}
    upload = stage.send(view, raysim.Upload(sums, encoding=encoding))
    assert all(d.dtype == torch.float64 for of in upload.sums.values() for d in of.values())
    return {g: {n: d.numpy() for n, d in of.items()} for g, of in upload.sums.items()}


def flat(groups: Groups) -> dict[str, np.ndarray]:
    """Return the vector of each group, its tensors by name."""
    return {g: np.concatenate([of[n].ravel() for n in sorted(of)]) for g, of in groups.items()}


def largest(x: np.ndarray, k: int) -> np.ndarray:
    order = sorted(range(len(x)), key=lambda i: (-abs(x[i]), i))[:k]
    coded = np.zeros_like(x)
    coded[order] = x[order]
    return coded


def topk(x: np.ndarray, group: str, draws: Any, *, fraction: float, per: str = "vector") -> Any:
    parts = np.split(x, np.cumsum(SIZES[group])[:-1]) if per == "tensor" else [x]
    return np.concatenate([largest(p, int(np.ceil(fraction * len(p)))) for p in parts])


def randk(x, group, draws, *, fraction: float, unbiased: bool = True, mask: str = "own") -> Any:
    k = int(np.ceil(fraction * len(x)))
    generator = draws["shared" if mask == "shared" else "own"]
    places = torch.randperm(len(x), generator=generator).numpy()[:k]
    coded = np.zeros_like(x)
    coded[places] = x[places] * (len(x) / k if unbiased else 1)
    return coded


def qsgd(x, group, draws, *, levels: int, bucket: int | None, unbiased: bool = True) -> Any:
    b = min(bucket or len(x), len(x))
    padded = np.append(x, np.zeros(-len(x) % b)).reshape(-1, b)
    u = torch.rand(padded.shape, generator=draws["own"]).numpy()
    norms = np.sqrt((padded**2).sum(1, keepdims=True))
    level = np.floor(levels * np.abs(padded) / np.where(norms > 0, norms, 1) + u)
    coded = np.sign(padded) * norms * level / levels
    v = min(b / levels**2, np.sqrt(b) / levels)
    return (coded if unbiased else coded / (1 + v)).ravel()[: len(x)]


def sign(x, group, draws) -> Any:
    coded = []
    for part in np.split(x, np.cumsum(SIZES[group])[:-1]):
        signs = np.sign(part)
        zeros = signs == 0
        signs[zeros] = 2 * torch.randint(0, 2, (int(zeros.sum()),), generator=draws["own"]) - 1
        coded.append(signs * np.abs(part).mean())
    return np.concatenate(coded)


def int8(x, group, draws, *, block: int) -> Any:
    padded = np.append(x, np.zeros(-len(x) % block)).reshape(-1, block)
    scales = np.abs(padded).max(1, keepdims=True) / 127
    return (np.round(padded / np.where(scales > 0, scales, 1)) * scales).ravel()[: len(x)]


def low_rank(x, group, draws, *, rank: int, iterations: int) -> Any:
    shapes = [SHAPES[group][n] for n in sorted(SHAPES[group])]
    coded = []
    for part, shape in zip(np.split(x, np.cumsum(SIZES[group])[:-1]), shapes, strict=True):
        m = part.reshape(shape[0], -1)
        if len(shape) < 2 or rank * sum(m.shape) >= m.size:
            coded.append(part)
            continue
        start = torch.randn(m.shape[1], rank, generator=draws["own"]).numpy()
        left = np.linalg.qr(m @ start)[0]
        for _ in range(iterations):
            left = np.linalg.qr(m @ np.linalg.qr(m.T @ left)[0])[0]
        coded.append((left @ left.T @ m).ravel())
    return np.concatenate(coded)


ORACLES = [
    (topk, {"fraction": 0.2}),
    (topk, {"fraction": 0.2, "per": "tensor"}),
    (randk, {"fraction": 0.3}),
    (randk, {"fraction": 0.3, "unbiased": False, "mask": "shared"}),
    (qsgd, {"levels": 3, "bucket": 8}),
    (qsgd, {"levels": 5, "bucket": None, "unbiased": False}),
    (qsgd, {"levels": 5, "bucket": 50, "unbiased": False}),  # more than there are of c
    (sign, {}),
    (int8, {"block": 16}),
    (low_rank, {"rank": 1, "iterations": 0}),
    (low_rank, {"rank": 2, "iterations": 2}),
]
named = partial(pytest.mark.parametrize, ids=lambda value: getattr(value, "__name__", str(value)))


@named(("oracle", "fields"), ORACLES)
def test_what_is_sent_is_numpy_s(oracle, fields):
    """Of two groups in other units, each a vector, with zeros and ties."""
    for client in (0, 5):
        given = changes(client)
        found = flat(sent(stage_of(oracle.__name__, **fields), given, view_of(client)))
        draws = {
            "own": torch_generator(7, "client/code", client),
            "shared": torch_generator(7, "clients/code"),
        }
        for group, x in sorted(flat(given).items()):
            expected = oracle(x, group, draws, **fields)
            np.testing.assert_allclose(found[group], expected, rtol=2e-6, atol=2e-6 * abs(x).max())


@named(("name", "fields"), [("qsgd", {"bucket": 8}), ("sign", {}), ("int8", {"block": 4})])
def test_behind_a_sparse_stage_only_what_is_sent_is_quantised(name, fields):
    """Zeros stay zeros; the others are coded as if they alone were there."""
    given, stage = changes(4, zeros=0.8), stage_of(name, **fields)
    values = sum(x.size for x in flat(given).values())
    found = sent(stage, given, view_of(), Encoding(values - 1, 32))
    dense: Groups = {g: {n: d[d != 0] for n, d in of.items()} for g, of in given.items()}
    alone = sent(stage, dense, view_of(), Encoding(values - 1, 32))
    for group, of in given.items():
        for key, d in of.items():
            assert not found[group][key][d == 0].any()
            np.testing.assert_array_equal(found[group][key][d != 0], alone[group][key])
    whole = sent(stage, given, view_of(), Encoding(values, 32))
    assert any((flat(whole)[g] != x).any() for g, x in flat(found).items())


@named("name", [*STAGES])
def test_a_client_that_is_not_finite_is_left_for_the_engine_to_refuse(name):
    given = changes(1)
    given["model"]["a"][2, 2] = np.nan
    assert np.isnan(flat(sent(stage_of(name), given, view_of()))["model"]).any()


@named(("name", "fields"), [(oracle.__name__, fields) for oracle, fields in ORACLES])
@pytest.mark.parametrize("x", [np.zeros((0, 3)), np.zeros(()), np.zeros((4, 6))], ids=np.shape)
def test_nothing_is_sent_as_nothing(name, fields, x):
    """Tensors without values, of no dimension, and all at 0."""
    found = sent(stage_of(name, **fields), {"model": {"a": x}}, view_of())["model"]["a"]
    np.testing.assert_array_equal(found, x)


LAYOUT = Layout(
    tuple(
        (f"{g}/{n}", torch.float32, torch.Size(s))
        for g, of in SHAPES.items()
        for n, s in of.items()
    )
)
"""61 values of the model in tensors of 30, 7 and 24, 36 of c."""
BYTES = {
    # 13 values of 61, in places of 6 bits, 8 of 36 in 6 bits
    "topk.fraction=0.2": 4 * (13 + 8) + 10 + 6,
    # 6, 2 and 5 of 30, 7 and 24 in 5, 3 and 5 bits; 8 of 36 in 6
    "topk.fraction=0.2,per=tensor": 4 * (6 + 2 + 5 + 8) + (4 + 1 + 4) + 6,
    "randk.fraction=0.2": 4 * (13 + 8) + 8,
    "randk.fraction=0.2,mask=shared": 4 * (13 + 8),
    "qsgd.levels=7,bucket=16": 49 + 4 * (4 + 3),  # 97 values of 4 bits
    "qsgd.levels=1,bucket=none": 25 + 4 * 2,  # of 2 bits
    "int8.block=16": 97 + 4 * (4 + 3),
    "sign.": 13 + 4 * 4,
    # factors of 6 x 5 and of 9 x 4; 7, and 3 x 8 as factors
    "low_rank.rank=1": 4 * (11 + 7 + 11 + 13),
    "low_rank.rank=3": 4 * (30 + 7 + 24 + 36),
    "topk.fraction=0.2 qsgd.bucket=16": 11 + 16 + 4 * (2 + 1),  # 21 values of 4 bits
    "int8.block=16 topk.fraction=0.2": 21 + 4 * 7 + 16,
    "topk.fraction=0.2 low_rank.rank=1": 4 * 42,
    # with the memory added, differences are neither sparse nor of 8 bits
    "topk.fraction=0.2 error_feedback. int8.block=16": 97 + 4 * (4 + 3),
    "int8.block=16 error_feedback. topk.fraction=0.2": 4 * 21 + 16,
}


@named(("stages", "expected"), BYTES.items())
def test_bytes_are_those_of_the_encoding(stages, expected):
    encoding = Encoding.of(LAYOUT)
    for each in stages.split():
        name, _, settings = each.partition(".")
        pairs = (pair.split("=") for pair in settings.split(",") if pair)
        words = {"tensor": "tensor", "shared": "shared", "none": None}
        fields = {k: words[v] if v in words else float(v) if "." in v else int(v) for k, v in pairs}
        encoding = encoded_by(stage_of(name, **fields), encoding, LAYOUT, 0)
    assert encoding.nbytes == expected


def moved(stage: raysim.Stage, x: np.ndarray, client: int) -> np.ndarray:
    given = {"model": {"a": x}}
    return sent(stage, given, view_of(client, torch.float64))["model"]["a"]


VECTORS = [np.random.default_rng(n).standard_t(2, size=(8, 12)) for n in range(3)]
PROMISES = {
    "bounds_norm": lambda x, coded: np.linalg.norm(coded) / np.linalg.norm(x),
    "is_contraction": lambda x, coded: np.linalg.norm(x - coded) / np.linalg.norm(x),
}
SETTINGS = [
    ("topk", {"fraction": 0.1}),
    ("randk", {"fraction": 0.1}),
    ("randk", {"fraction": 0.1, "unbiased": False}),
    ("qsgd", {"levels": 1, "bucket": None}),
    ("qsgd", {"levels": 1, "bucket": None, "unbiased": False}),
    ("sign", {}),
    ("int8", {"block": 4}),
    ("low_rank", {"rank": 1}),
    ("clip", {"norm": 1.0}),
    ("error_feedback", {}),
]


@named("promise", PROMISES)
@named(("name", "fields"), SETTINGS)
def test_stages_are_what_they_say(name, fields, promise):
    """By the mean over draws; where nothing is promised, it does not hold, or is not sought."""
    stage, ratio = stage_of(name, **fields), PROMISES[promise]
    found = [np.mean([ratio(x, moved(stage, x, n)) ** 2 for n in range(40)]) for x in VECTORS]
    if getattr(stage, promise):
        assert max(found) < (1 if promise == "is_contraction" else 1 + 1e-12)
    elif name in ("randk", "qsgd") and getattr(stage, "unbiased", False):
        assert max(found) > 1


@named(("name", "fields"), [("randk", {"fraction": 0.3}), ("qsgd", {"levels": 2, "bucket": 16})])
def test_unbiased_coders_have_the_mean_of_what_they_are_given(name, fields):
    stage, x = stage_of(name, **fields), VECTORS[0]
    draws = np.stack([moved(stage, x, client) for client in range(1500)])
    deviation = draws.std(0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(0) - x) < 5 * deviation + 1e-9).all()
    biased = stage_of(name, **fields, unbiased=False)
    share = np.vdot(np.mean([moved(biased, x, n) for n in range(300)], 0), x) / np.vdot(x, x)
    v = min(16 / 2**2, 4 / 2)
    assert share == pytest.approx(0.3 if name == "randk" else 1 / (1 + v), rel=0.1)


def test_a_shared_mask_is_that_of_all_clients_and_an_own_one_is_not():
    given = {"model": {"a": np.ones((20, 20))}}
    for mask, alike in (("shared", True), ("own", False)):
        stage = stage_of("randk", fraction=0.1, mask=mask)
        one, other = (flat(sent(stage, given, view_of(client)))["model"] for client in (1, 2))
        assert (np.flatnonzero(one).tolist() == np.flatnonzero(other).tolist()) == alike
        assert np.count_nonzero(one) == 40
