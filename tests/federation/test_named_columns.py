"""DataFrames are taken by the names of their columns, in whatever order they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from torch import nn
from torch.utils.data import Dataset

import raysim
from raysim.errors import DataError
from raysim.federation.prepared import open_prepared, prepared
from raysim.federation.task import from_task
from raysim.samples.data import Dataset as OwnDataset

AGES, DOSES, Y = np.array([1.0, 2, 3]), np.array([0.1, 0.2, 0.3]), np.array([0, 1, 1])
AGE_FIRST = pd.DataFrame({"age": AGES, "dose": DOSES})
DOSE_FIRST = AGE_FIRST[["dose", "age"]]
RENAMED = AGE_FIRST.rename(columns={"dose": "weight"})


class Rows(Dataset):
    """Dataset whose samples are rows of a DataFrame."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, row: int) -> tuple[pd.Series, int]:
        return self.frame.iloc[row], int(Y[row])


GIVEN: dict[str, Callable[[pd.DataFrame], Any]] = {
    "DataFrames": lambda frame: (frame, Y),
    "DataFrames and Series": lambda frame: (frame, pd.Series(Y)),
    "Arrow tables": lambda frame: (pa.Table.from_pandas(frame), Y),
    "datasets of rows": Rows,
}


def read(clients: list[Any], **more: Any) -> np.ndarray:
    return from_task(raysim.Task(lambda: nn.Linear(2, 2), clients, **more)).train.x


@pytest.mark.parametrize("give", GIVEN.values(), ids=GIVEN)
def test_columns_are_in_the_order_of_the_first_client(give):
    x = read([give(AGE_FIRST), give(DOSE_FIRST)], test=give(DOSE_FIRST))
    assert x.tolist() == np.stack([[*AGES, *AGES], [*DOSES, *DOSES]], axis=1).tolist()


@pytest.mark.parametrize("give", GIVEN.values(), ids=GIVEN)
def test_other_columns_are_refused(give):
    says = r"inputs have the columns age, weight, but client 0.* has the columns age, dose; .*name"
    with pytest.raises(DataError, match=f"^client 1.*: {says}"):
        read([give(AGE_FIRST), give(RENAMED)])
    with pytest.raises(DataError, match=r"^client 1.*: inputs have the columns age, but"):
        read([give(AGE_FIRST), give(AGE_FIRST[["age"]])])


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (AGE_FIRST, AGE_FIRST.to_numpy(), "have no names of columns, but client 0 has the column"),
        (AGE_FIRST.to_numpy(), AGE_FIRST, "but client 0 has no names of columns; columns are tak"),
        (AGE_FIRST, pd.concat([AGE_FIRST, AGE_FIRST], axis=1), "two columns .* are named age"),
    ],
    ids=["an array", "a table after an array", "a name twice"],
)
def test_what_has_no_name_or_two_is_refused(first, second, says):
    with pytest.raises(DataError, match=f"^client 1: .*{says}"):
        read([(first, Y), (second, Y)])


def test_numbers_for_names_are_none():
    x = read([(pd.DataFrame(AGE_FIRST.to_numpy()), Y), (AGE_FIRST.to_numpy(), Y)])
    assert x.shape == (6, 2)


def test_what_has_no_samples_needs_no_columns():
    tests = [(np.zeros((0, 2)), Y[:0]), (DOSE_FIRST, Y)]
    assert len(read([(AGE_FIRST, Y), (DOSE_FIRST, Y)], client_tests=tests)) == 6


def test_columns_of_each_input_and_of_targets():
    """Of several inputs, and of several targets a sample."""
    scoring = raysim.Scoring(lambda outputs, y: (outputs - y).square().sum(dim=1))
    clients = [({"x": f, "z": AGES}, f) for f in (AGE_FIRST, DOSE_FIRST)]
    task = raysim.Task(lambda: nn.Linear(3, 2), clients, scoring=scoring)
    train = from_task(task).train
    assert train.x[:3].tolist() == train.x[3:].tolist()
    assert train.y[:3].tolist() == train.y[3:].tolist() == AGE_FIRST.to_numpy().tolist()


def test_columns_of_the_sets_of_a_dataset(tmp_path):
    class Doses(OwnDataset):
        def prepare(self, root: Any, progress: Any) -> dict[str, Any]:
            return {"train": (AGE_FIRST, Y), "test": (DOSE_FIRST, Y)}

    paths = prepared(Doses(), tmp_path, lambda *_: None)
    x = [open_prepared(Doses(), paths[split]).x.tolist() for split in ("train", "test")]
    assert x[0] == x[1] == AGE_FIRST.to_numpy().tolist()
