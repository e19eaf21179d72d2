"""Partial sums: the same in any order and grouping, and nothing that is wrong is added."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim import RunError, Upload
from raysim.execution.partial_sum import PartialSum

TOTAL = 60
floats = st.floats(-1e5, 1e5, width=32, allow_subnormal=False)
uploads = st.builds(
    lambda values, count, kinds: Upload(
        sums={"model": {"w": torch.tensor(values), "n": torch.tensor([count])}},
        rows={"row": {"x": torch.tensor(values[:1])}} if kinds & 1 else {},
        state={"own": {"x": torch.ones(1)}} if kinds & 2 else {},
        round_state={"staged": {"x": torch.ones(1)}} if kinds & 4 else {},
        scalars={"score": values[0]} | ({"rare": values[1]} if kinds & 8 else {}),
        metrics={"seen": count} if kinds & 16 else {},
        bytes_up=3 if kinds & 32 else None,
    ),
    st.lists(floats, min_size=2, max_size=2),
    st.integers(0, 9),
    st.integers(0, 63),
)
cohorts = st.lists(uploads, min_size=1, max_size=6).map(lambda each: [*enumerate(each)])
few = settings(max_examples=40)


def summed(cohort: Iterable[tuple[int, Upload]]) -> PartialSum:
    total = PartialSum()
    for client, upload in cohort:
        total.add({"client": client}, total.check(upload)(), client + 1, TOTAL)
    return total


def merged(*sums: PartialSum) -> PartialSum:
    total = PartialSum()
    for each in sums:
        total.merge(each)
    return total


def content(total: PartialSum) -> Any:
    """Return all that a partial sum holds, in an order of its own."""
    columns = total.columns()
    reduced = total.reduced(TOTAL, columns)
    means = {n: (t.dtype, t.numpy().tobytes()) for n, t in reduced.means.get("model", {}).items()}
    rows = {client: float(groups["row"]["x"]) for client, groups in reduced.rows.items()}
    return (
        (reduced.clients, means, rows, total.weight, total.bytes_up),
        {name: repr(values.tolist()) for name, values in columns.items()},
        {name: repr(values.tolist()) for name, values in reduced.scalars.items()},
        (sorted(total.wrote_state), sorted(total.wrote_round_state)),
    )


@few
@given(cohorts, st.randoms(use_true_random=False), st.integers(0, 6), st.integers(0, 6))
def test_merging_is_associative_and_commutative(cohort, random, i, j):
    expected = content(summed(cohort))
    shuffled = random.sample(cohort, len(cohort))
    i, j = sorted((i, j))

    def thirds() -> list[PartialSum]:
        return [summed(shuffled[:i]), summed(shuffled[i:j]), summed(shuffled[j:])]

    a, b, c = thirds()
    assert content(merged(a, merged(b, c))) == expected
    a, b, c = thirds()
    assert content(merged(merged(c, b), a)) == expected


@few
@given(cohorts)
def test_pickling_keeps_sums(cohort):
    expected = content(summed(cohort))
    assert content(pickle.loads(pickle.dumps(summed(cohort)))) == expected  # noqa: S301


@few
@given(cohorts, cohorts)
def test_what_was_unpickled_is_never_written_to(first, second):
    """As from the object store, which maps its buffers read-only."""
    second = [(client + len(first), upload) for client, upload in second]
    buffers: list[pickle.PickleBuffer] = []
    sent = pickle.dumps(summed(first), protocol=5, buffer_callback=buffers.append)
    before = [bytes(buffer) for buffer in buffers]
    mapped = [np.frombuffer(raw, np.uint8) for raw in before]
    assert len(mapped) >= 2 and not any(array.flags.writeable for array in mapped)
    arrived = pickle.loads(sent, buffers=mapped)  # noqa: S301
    total = merged(arrived, summed(second))
    assert content(total) == content(summed(first + second))
    assert [array.tobytes() for array in mapped] == [bytes(buffer) for buffer in buffers]


def test_an_empty_sum_changes_nothing():
    total = summed([(0, upload_of())])
    expected = content(total)
    total.merge(PartialSum())
    assert content(total) == expected
    assert PartialSum().reduced(TOTAL, {}).means == {}


def upload_of(**others: Any) -> Upload:
    return Upload(**{"sums": {"model": {"w": torch.ones(2), "v": torch.ones(1)}}, **others})


OTHERS = {
    "one more": ({"w": torch.ones(2), "v": torch.ones(1), "u": torch.ones(1)}, "model/u"),
    "one less": ({"w": torch.ones(2)}, "model/v"),
    "another shape": ({"w": torch.ones(2), "v": torch.ones(2)}, "model/v"),
    "another dtype": ({"w": torch.ones(2).double(), "v": torch.ones(1)}, "model/w"),
}


@pytest.mark.parametrize(("tensors", "name"), OTHERS.values(), ids=OTHERS)
def test_other_tensors_are_refused_by_name(tensors, name):
    """One worker's client is refused; between workers it is the pass."""
    total, other = summed([(0, upload_of())]), upload_of(sums={"model": tensors})
    expected = content(total)
    with pytest.raises(RunError, match=rf"^its upload.s tensors differ.*\({name}\)$"):
        total.check(other)()
    with pytest.raises(RunError, match=rf"^clients 0 and 7 uploaded different.*\({name}\)$"):
        total.merge(summed([(7, other)]))
    assert content(total) == expected


def test_tensors_in_another_order_are_added_by_name():
    """A resumed run has those of a file in the order of their names. Weights are 1, 8 and 4."""
    other = {"v": torch.tensor([3.0]), "w": torch.tensor([5.0, 7.0])}
    total = summed([(0, upload_of()), (7, upload_of(sums={"model": other}))])
    total.merge(summed([(3, upload_of(sums={"model": {"w": other["w"], "v": other["v"]}}))]))
    means = total.reduced(TOTAL, {}).means["model"]
    assert means["v"].tolist() == pytest.approx([(1 + 12 * 3) / 13])
    assert means["w"].tolist() == pytest.approx([(1 + 12 * 5) / 13, (1 + 12 * 7) / 13])


def test_a_value_is_seen_in_every_group_of_a_name():
    bad, fine = {"w": torch.tensor([float("nan")])}, {"w": torch.ones(1)}
    with pytest.raises(RunError, match=r"not finite \(model/w\)"):
        PartialSum().check(upload_of(rows={"model": bad}, state={"model": fine}))()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("part", ["sums", "rows", "state", "round_state", "scalars"])
def test_values_that_are_not_finite_are_refused_by_name(part, value):
    if part == "scalars":
        upload, name = upload_of(scalars={"fine": 1.0, "score": value}), "score"
    else:
        groups = {"g": {"fine": torch.ones(2), "n": torch.ones(1).int(), "bad": torch.ones(2)}}
        groups["g"]["bad"][1] = value
        upload, name = upload_of(**{part: groups}), "g/bad"
    with pytest.raises(RunError, match=rf"not finite \((tensor )?{name}\): try a smaller local.lr"):
        PartialSum().check(upload)()


def test_metrics_are_for_people_and_may_be_anything():
    total = summed([(0, upload_of(metrics={"ratio": float("nan")}))])
    assert np.isnan(total.columns()["ratio"]).all()
    assert total.reduced(TOTAL, total.columns()).scalars == {}


def test_bytes_up_are_those_of_tensors_and_scalars_or_as_given():
    rows = {"row": {"x": torch.ones(5).half()}}
    upload = upload_of(rows=rows, scalars={"a": 1.0, "b": 2.0}, state={"own": {"x": torch.ones(9)}})
    assert summed([(0, upload)]).bytes_up == 4 * 3 + 2 * 5 + 4 * 2
    assert summed([(0, upload_of(rows=rows, bytes_up=7)), (1, upload)]).bytes_up == 7 + 30
    assert summed([(0, upload_of(bytes_up=0))]).bytes_up == 0
