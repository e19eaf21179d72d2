"""synthetic(gamma1, gamma2): its moments against the formulas; its labels, worked out again."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from pydantic import ValidationError

import raysim.workloads  # noqa: F401 - registers names
from raysim.errors import DataError
from raysim.numbers.seeds import stream
from raysim.samples.arrow import checksum, open_split
from raysim.samples.data import DATASETS, Dataset, Split
from raysim.workloads.datasets.plane import Plane
from raysim.workloads.datasets.synthetic import Synthetic


def ignore(what: str, done: int, total: int) -> None:
    pass


def splits(root: Path, dataset: Synthetic) -> tuple[Split, Split]:
    paths = dataset.prepare(root, ignore)
    return open_split(paths["train"]), open_split(paths["test"])


def test_shapes_and_users(tmp_path: Path) -> None:
    train, test = splits(tmp_path, Synthetic(users=3, samples=5, test_samples=2))
    assert train.x.shape == (15, 1024)
    assert train.x.dtype == np.float32
    assert train.columns["user"].tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert test.columns["user"].tolist() == [0, 0, 1, 1, 2, 2]
    assert train.y.dtype == np.int64
    assert set(train.y) | set(test.y) <= set(range(10))


def test_variances_within_a_user_are_powers_of_the_input_number(tmp_path: Path) -> None:
    train, test = splits(tmp_path, Synthetic(users=2, samples=4000, test_samples=1000))
    expected = np.array([j**-1.2 for j in range(1, 1025)])
    for split, samples in ((train, 4000), (test, 1000)):
        ratios = split.x[split.columns["user"] == 1].astype(np.float64).var(0) / expected
        # A variance of n normal samples is off by sqrt(2 / n) of it; 1024 of them, by 5 of those.
        assert abs(ratios - 1).max() < 5 * (2 / samples) ** 0.5
        assert abs(ratios.mean() - 1) < 5 * (2 / samples / 1024) ** 0.5


def test_inputs_are_uncorrelated(tmp_path: Path) -> None:
    train, _ = splits(tmp_path, Synthetic(users=1, samples=4000, test_samples=1))
    correlations = np.corrcoef(train.x[:, :50].astype(np.float64).T) - np.eye(50)
    assert abs(correlations).max() < 5 / 4000**0.5


def test_test_samples_have_the_means_of_their_users(tmp_path: Path) -> None:
    train, test = splits(tmp_path, Synthetic(users=3, samples=50, test_samples=50))
    means = [
        np.stack([split.x[split.columns["user"] == user].mean(0) for user in range(3)])
        for split in (train, test)
    ]
    distances = np.linalg.norm(means[0][:, None] - means[1], axis=2)
    # The inputs' deviations add up to about 1.9, means of 50 to 0.4; users are about 45 apart.
    assert np.diag(distances).max() < 1
    assert (distances + 100 * np.eye(3)).min() > 30


@pytest.mark.parametrize(("gamma", "users"), [(0.0, 40), (4.0, 100)])
def test_means_of_users_vary_by_gamma1(tmp_path: Path, gamma: float, users: int) -> None:
    train, _ = splits(tmp_path, Synthetic(gamma1=gamma, users=users, samples=1, test_samples=1))
    x = train.x.astype(np.float64)
    # The mean of a user's 1024 inputs has the variance gamma1 + (1 + mean of j^-1.2) / 1024.
    small = (1 + np.mean(np.arange(1, 1025) ** -1.2)) / 1024
    assert x.mean(1).var() == pytest.approx(gamma + small, rel=5 * (2 / users) ** 0.5)
    # Within a user the 1024 means have variance 1, whatever gamma1; late inputs add little noise.
    late = x[:, 512:]
    noise = np.mean(np.arange(513, 1025) ** -1.2)
    assert late.var(1, ddof=1).mean() == pytest.approx(1 + noise, rel=5 * (2 / 512 / users) ** 0.5)


def test_labels_are_those_of_the_users_own_network(tmp_path: Path) -> None:
    dataset = Synthetic(gamma2=0.25, users=8, samples=6, test_samples=2, seed=7)
    train, test = splits(tmp_path, dataset)
    for user in range(8):
        draw = stream(7, "synthetic-labels", user)
        u = draw.normal() * 0.5
        w1, b1, w2, b2 = (
            u + draw.standard_normal(shape, np.float32).astype(np.float64)
            for shape in ((1024, 512), 512, (512, 10), 10)
        )
        for split in (train, test):
            mine = split.columns["user"] == user
            x = split.x[mine].astype(np.float64)
            hidden = np.einsum("ni,ih->nh", x, w1) + b1
            logits = np.einsum("nh,hc->nc", hidden * (hidden > 0), w2) + b2
            assert np.array_equal(split.y[mine], logits.argmax(1))
        # Beside these inputs the biases hardly count; alone, they do.
        alone = dataset._labels(user, np.zeros((1, 1024), np.float32))
        assert alone == [(np.maximum(b1, 0) @ w2 + b2).argmax()]


def test_the_same_settings_give_the_same_bytes_and_others_another_file(tmp_path: Path) -> None:
    small = {"users": 2, "samples": 3, "test_samples": 1}
    first = Synthetic(**small).prepare(tmp_path / "a", ignore)["train"]
    again = Synthetic(**small).prepare(tmp_path / "b", ignore)["train"]
    assert checksum(first) == checksum(again)
    others = [{"gamma1": 0.5}, {"gamma2": 0.5}, {"users": 3}, {"seed": 1}, {"test_samples": 2}]
    paths = {first} | {
        Synthetic(**small | other).prepare(tmp_path / "a", ignore)["train"] for other in others
    }
    assert len(paths) == 6
    assert np.array_equal(open_split(first).x, open_split(again).x)
    reseeded = Synthetic(**small, seed=1).prepare(tmp_path / "a", ignore)["train"]
    assert not np.array_equal(open_split(first).x, open_split(reseeded).x)


def test_a_user_is_the_same_among_few_and_many(tmp_path: Path) -> None:
    few, _ = splits(tmp_path, Synthetic(users=1, samples=4, test_samples=1))
    many, _ = splits(tmp_path, Synthetic(users=3, samples=4, test_samples=1))
    assert np.array_equal(few.x, many.x[:4])
    assert np.array_equal(few.y, many.y[:4])


def test_space_is_needed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Synthetic(users=3, samples=4, test_samples=1)
    before = dataset.prepare(tmp_path, ignore)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0))
    assert dataset.prepare(tmp_path, ignore) == before
    with pytest.raises(DataError, match=r"dataset.users=4: .* has 0 B free"):
        Synthetic(users=4, samples=4, test_samples=1).prepare(tmp_path, ignore)


@pytest.mark.parametrize(
    "wrong", [{"gamma1": -0.1}, {"gamma2": -1.0}, {"users": 0}, {"samples": 0}, {"test_samples": 0}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        Synthetic(**wrong)


def test_registered() -> None:
    dataset = DATASETS.get("synthetic")()
    assert dataset.settings()["name"] == "synthetic"
    assert (dataset.shape, dataset.classes) == ((1024,), 10)


@pytest.mark.parametrize("dataset", [Synthetic(users=2, samples=3, test_samples=1), Plane()])
def test_data_of_the_run_is_that_of_its_seed(tmp_path: Path, dataset: Dataset) -> None:
    follows, fixed = (dataset.model_copy(update={"seed": seed}) for seed in ("run", 4))
    for seed in (5, 6):
        assert follows.for_run(seed) == dataset.model_copy(update={"seed": seed})
    assert fixed.for_run(5) is fixed
    with pytest.raises(DataError, match=r"dataset.seed=run: a run alone has a seed"):
        follows.prepare(tmp_path, ignore)


def test_a_column_named_run_is_no_seed() -> None:
    table = DATASETS.get("files")(path="mails.csv", target="run")
    assert table.for_run(5) is table
