"""What `prepare` may return besides paths: the same samples in each form are the same files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import raysim
from raysim.api.scoring import IGNORED
from raysim.federation import written
from raysim.federation.prepared import network_size, open_prepared, prepared
from raysim.samples.data import Split
from tests.tasks import make_settings

GENERATOR = np.random.default_rng(0)
Y = np.arange(40) % 3
X = (GENERATOR.normal(size=(40, 4)) + Y[:, None]).astype(np.float32)
SITES = np.array(["a", "b"])[np.arange(40) // 20]


class Pairs(Dataset):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, row: int) -> Any:
        return torch.tensor(X[row]), int(Y[row])


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(zip(X, Y, strict=True))


FORMS: dict[str, Any] = {
    "split": lambda: Split(X, Y),
    "arrays": lambda: (X, Y),
    "tensors": lambda: (torch.tensor(X), torch.tensor(Y)),
    "dataset": Pairs,
    "tensor dataset": lambda: TensorDataset(torch.tensor(X), torch.tensor(Y)),
    "iterable dataset": Stream,
    "loader": lambda: DataLoader(Pairs(), batch_size=7),
    "list": lambda: [*zip(X, Y.tolist(), strict=True)],
    "generator": lambda: ((x, y) for x, y in zip(X, Y, strict=True)),
    "with clients": lambda: ((x, y, c) for x, y, c in zip(X, Y, SITES, strict=True)),
}
BAD: dict[str, tuple[Any, str]] = {
    "none": (lambda: iter(()), "train: has no samples"),
    "one": (lambda: iter([X[0]]), r"train, sample 0: must be \(x, y\)"),
    "mixed": (lambda: iter([(X[0], 0), (X[1], 1, "a")]), r"all be \(x, y\), or all"),
    "shapes": (lambda: iter([(X[0], 0), (X[1, :2], 1)]), r"sample 1: .* shape \[2\]"),
    "nan": (lambda: (X * np.nan, Y), "the input is not finite"),
    "several": (lambda: ({"a": X, "b": X}, Y), "have one input and a target; give a raysim.Task"),
    "no target": (lambda: (X, None), "have one input and a target"),
    "text": (lambda: "train.arrow", "a Path or to samples"),
    "failing": (lambda: (1 / 0 for _ in X), "prepare failed: ZeroDivisionError"),
}


class Given(raysim.Dataset):
    """Samples in one of the forms; neither shape nor classes are said."""

    form: str = "split"

    def prepare(self, root: Path, progress: Any) -> Mapping[str, Any]:
        make = FORMS[self.form] if self.form in FORMS else BAD[self.form][0]
        return {"train": make(), "test": (X, Y)}


class Said(Given):
    classes: ClassVar = 5


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_same_samples(form, tmp_path, monkeypatch):
    monkeypatch.setattr(written, "PART_BYTES", 10 * X[0].nbytes)  # four parts
    dataset = Given(form=form)
    path = prepared(dataset, tmp_path, lambda *_: None)["train"]
    found = open_prepared(dataset, path)
    assert np.array_equal(found.x[:], X) and np.array_equal(found.y, Y)
    assert ("client" in found.columns) == (form == "with clients")
    if form == "with clients":
        assert found.columns["client"].tolist() == SITES.tolist()
    assert network_size(dataset, lambda: found) == ((4,), 3)
    assert network_size(Said(), lambda: found) == ((4,), 5)
    assert prepared(dataset, tmp_path, lambda *_: None)["train"] == path
    assert not [*path.parent.parent.glob(".*")]


@pytest.mark.parametrize(
    ("scoring", "more"), [(raysim.LANGUAGE_MODEL, []), (raysim.multiple_choice(), [99, 1])]
)
def test_outputs_of_a_language_model_are_the_tokens(scoring, more):
    class Tokens(Given):
        @property
        def scoring(self):
            return scoring

    x = np.array([[3, 7, 2], [1, 1, -1]])
    y = np.array([[7, 2, IGNORED, *more], [1, IGNORED, IGNORED, *more]])
    assert network_size(Tokens(), lambda: raysim.Split(x, y)) == ((3,), 8)


@pytest.mark.parametrize("form", BAD)
def test_others_are_refused_in_a_line(form, tmp_path):
    with pytest.raises(raysim.RaysimError, match=BAD[form][1]) as caught:
        prepared(Given(form=form), tmp_path, lambda *_: None)
    assert len(str(caught.value).splitlines()) == 1


def test_a_run_on_samples_of_its_own_is_resumed(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    parts = {"dataset.name": f"{__name__}:Given", "dataset.form": "with clients"}
    parts |= {"partition.name": "natural", "model.name": "linear", "clients": 2, "fraction": 1.0}

    class Stop(raysim.Listener):
        def round_done(self, row: Any) -> None:
            if row["round"] == 2:
                raise KeyboardInterrupt

    whole = raysim.run(make_settings(tmp_path / "whole", rounds=4, **parts))
    settings = make_settings(tmp_path / "cut", rounds=4, checkpoint_every=1, **parts)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(settings, listener=Stop())
    resumed = raysim.resume(tmp_path / "cut")
    assert all(torch.equal(whole.params[name], resumed.params[name]) for name in whole.params)
    loaded = raysim.load(tmp_path / "whole")
    assert torch.equal(loaded.state_dict()["head.0.weight"], whole.params["head.0.weight"])
