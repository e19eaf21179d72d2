"""The by_key partition."""

import numpy as np
import pytest

import raysim
from raysim.errors import DataError
from raysim.samples.data import Split
from raysim.workloads.partitions.by_key import ByKey

SIZES = {"Hamlet": 9, "Ophelia": 4, "Claudius": 9, "Osric": 1, "Polonius": 6}
CHARACTERS = {"Hamlet": 900, "Ophelia": 400, "Claudius": 90, "Osric": 5, "Polonius": 600}


@pytest.fixture
def play() -> Split:
    roles = np.repeat(np.array(list(SIZES), dtype=object), list(SIZES.values()))
    roles = np.random.default_rng(0).permutation(roles)
    characters = np.array([CHARACTERS[role] for role in roles])
    line = np.zeros((len(roles), 2))
    columns = {"role": roles, "characters": characters, "line": line}
    return Split(line, np.zeros(len(roles), np.int64), columns)


def roles_of(data: Split, partition: ByKey, clients: int, seed: int = 0) -> list[str]:
    """Return the client's roles, each of which must hold all samples of its role and no other."""
    indices = partition.split(data, clients, seed)
    roles = []
    for client in range(clients):
        (role,) = set(data.columns["role"][indices[client]])
        assert np.array_equal(indices[client], np.flatnonzero(data.columns["role"] == role))
        roles.append(role)
    return roles


def test_all_keys_are_clients_in_their_order(play: Split) -> None:
    assert roles_of(play, ByKey(key="role"), 5) == sorted(SIZES)


def test_minimum_and_at_least_choose_keys(play: Split) -> None:
    assert roles_of(play, ByKey(key="role", minimum=6), 3) == ["Claudius", "Hamlet", "Polonius"]
    talkative = ByKey(key="role", at_least={"characters": 400})
    assert roles_of(play, talkative, 3) == ["Hamlet", "Ophelia", "Polonius"]
    both = ByKey(key="role", minimum=6, at_least={"characters": 400})
    assert roles_of(play, both, 2) == ["Hamlet", "Polonius"]


def test_at_least_holds_for_every_sample_of_a_key() -> None:
    columns = {"user": np.array([7, 7, 8, 8]), "quality": np.array([1.0, 0.2, 0.5, 0.5])}
    data = Split(np.zeros((4, 1)), np.zeros(4, np.int64), columns)
    indices = ByKey(key="user", at_least={"quality": 0.5}).split(data, 1, 0)
    assert indices[0].tolist() == [2, 3]


def test_fewer_clients_than_keys_are_drawn_by_seed_or_the_largest(play: Split) -> None:
    draws = [tuple(roles_of(play, ByKey(key="role"), 2, seed)) for seed in range(60)]
    assert draws == [tuple(roles_of(play, ByKey(key="role"), 2, seed)) for seed in range(60)]
    assert len(set(draws)) == 10  # all pairs of five
    largest = ByKey(key="role", choose="largest")
    assert roles_of(play, largest, 1) == ["Claudius"]  # as many samples as Hamlet
    assert roles_of(play, largest, 3, 8) == ["Claudius", "Hamlet", "Polonius"]


def test_too_few_keys_are_refused(play: Split) -> None:
    expected = (
        r"clients=4: 3 of the 5 values of partition\.key=role fit"
        r" \(minimum=2, characters>=400\); at most so many clients"
    )
    with pytest.raises(DataError, match=expected):
        ByKey(key="role", minimum=2, at_least={"characters": 400}).split(play, 4, 0)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"key": "writer"}, "partition.key=writer: no such column; this dataset has characters, r"),
        ({"key": "line"}, "partition.key=line: no such column"),
        (
            {"key": "role", "at_least": {"lines": 1.0}},
            "partition.at_least=lines: no such column",
        ),
        (
            {"key": "role", "at_least": {"role": 1.0}},
            "partition.at_least.role: this column does not hold numbers",
        ),
    ],
)
def test_wrong_columns_are_refused(play: Split, fields: dict[str, object], said: str) -> None:
    with pytest.raises(DataError) as caught:
        ByKey.model_validate(fields).split(play, 2, 0)
    assert str(caught.value).startswith(said)


def test_a_dataset_without_columns_is_refused() -> None:
    data = Split(np.zeros((4, 1)), np.zeros(4, np.int64))
    with pytest.raises(DataError, match=r"key=writer: no such column; this dataset has none"):
        ByKey().split(data, 2, 0)


def test_settings_as_a_user_types_them() -> None:
    overrides = {
        "partition.name": "by_key",
        "partition.key": "role",
        "partition.at_least.characters": 10_000,
        "clients": 66,
    }
    settings = raysim.load_config("mnist-fedavg", overrides)
    assert settings.partition == ByKey(key="role", at_least={"characters": 10_000})
    again = settings.override({"partition.minimum": 3}).to_dict()["partition"]
    assert again["at_least"] == {"characters": 10_000.0}
