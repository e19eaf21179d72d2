"""LEAF's JSON: every damage is named with its file and user, or line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysim.errors import DataError
from raysim.samples.client_indices import Indices
from raysim.workloads.datasets.leaf import Leaf, User, read_leaf


def ignore(what: str, done: int, total: int) -> None:
    pass


def as_they_are(user: User) -> tuple[Indices, Indices]:
    return np.array(user.x), np.array(user.y)


def read(folder: Path) -> Leaf:
    return read_leaf(folder, "who", as_they_are, "`the command`", ignore)


def content(**users: list[int]) -> dict[str, Any]:
    """Users whose samples are x = 10 y."""
    return {
        "users": list(users),
        "num_samples": [len(y) for y in users.values()],
        "user_data": {name: {"x": [10 * v for v in y], "y": y} for name, y in users.items()},
    }


def put(folder: Path, name: str, value: Any) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_users_of_all_files_in_order(tmp_path: Path) -> None:
    put(tmp_path, "train/b.json", content(cy=[5]))
    put(tmp_path, "train/a.json", content(bo=[1, 2], al=[3]))
    put(tmp_path, "test/a.json", content(al=[4], di=[6, 7]))
    told: list[tuple[str, int, int]] = []
    leaf = read_leaf(tmp_path, "who", as_they_are, "", lambda *step: told.append(step))
    assert leaf.names == ["bo", "al", "cy", "di"]
    assert leaf.published.tolist() == [2, 2, 1, 2]
    train, test = leaf.splits["train"], leaf.splits["test"]
    assert train.x.tolist() == [10, 20, 30, 50]
    assert train.y.tolist() == [1, 2, 3, 5]
    assert train.columns["who"].tolist() == [0, 0, 1, 2]
    assert test.y.tolist() == [4, 6, 7]
    assert test.columns["who"].tolist() == [1, 3, 3]
    assert told == [(f"read {tmp_path.name}", done, 3) for done in range(4)]


def test_the_counts_that_leaf_writes_wrongly_do_not_matter(tmp_path: Path) -> None:
    put(tmp_path, "train/a.json", content(al=[1]))
    put(tmp_path, "test/a.json", content(al=[1, 2]) | {"num_samples": [81]})
    assert len(read(tmp_path).splits["test"]) == 2


@pytest.mark.parametrize("missing", ["train", "test"])
def test_missing_files_are_named_with_how_to_get_them(tmp_path: Path, missing: str) -> None:
    put(tmp_path, f"{'test' if missing == 'train' else 'train'}/a.json", content(al=[1]))
    with pytest.raises(DataError) as caught:
        read(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / missing}: no *.json found")
    assert "`the command` of https://github.com/TalwalkarLab/leaf" in message
    assert f"{tmp_path / 'train'} and {tmp_path / 'test'}" in message


GOOD = json.dumps(content(al=[1, 2]), indent=1)
DAMAGES = {
    "truncated": (GOOD[:-20], r"line \d+, column \d+: not a complete JSON file"),
    "empty": ("", "line 1, column 1: not a complete JSON file"),
    "a list": ([1], "has no `users`"),
    "no user_data": ({"users": ["al"]}, "has no `user_data`"),
    "users no list": ({"users": "al", "user_data": {}}, "`users` must be a list of names"),
    "users no names": ({"users": [["al"]], "user_data": {}}, "`users` must be a list of names"),
    "user missing": (content(al=[1]) | {"users": ["bo"]}, "user_data: has no `bo`"),
    "no labels": ({"users": ["al"], "user_data": {"al": {"x": [1]}}}, "user al: has no `y`"),
    "x no list": (
        {"users": ["al"], "user_data": {"al": {"x": "a", "y": [1]}}},
        "user al: `x` and `y` must be lists",
    ),
    "uneven": (
        {"users": ["al"], "user_data": {"al": {"x": [1, 2, 3], "y": [1, 2]}}},
        "user al: 3 inputs in `x`, 2 labels in `y`",
    ),
    "no samples": (content(bo=[1], al=[]), "user al: has no samples"),
    "given twice": ('{"users": [], "users": ["al"]}', r"not a JSON file \(the key 'users' is"),
    "named twice": (content(al=[1]) | {"users": ["al", "al"]}, "user al: is also in .*b.json"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named(tmp_path: Path, damage: str) -> None:
    value, message = DAMAGES[damage]
    put(tmp_path, "train/a.json", content(first=[1]))
    put(tmp_path, "test/a.json", content(first=[1]))
    path = put(tmp_path, "train/b.json", value)
    with pytest.raises(DataError, match=f"^{path}: {message}"):
        read(tmp_path)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    put(tmp_path, "test/a.json", content(al=[1]))
    path = put(tmp_path, "train/a.json", "")
    path.write_bytes(b'{"users": ["\xff\xfe"]}')
    with pytest.raises(DataError, match=f"^{path}: not a JSON file"):
        read(tmp_path)


def test_two_preprocessings_in_one_folder_are_refused(tmp_path: Path) -> None:
    first = put(tmp_path, "train/a.json", content(al=[1], bo=[1]))
    second = put(tmp_path, "train/b.json", content(bo=[1]))
    put(tmp_path, "test/a.json", content(al=[1]))
    with pytest.raises(DataError, match=f"^{second}: user bo: is also in {first}; remove"):
        read(tmp_path)


def test_a_split_of_which_nothing_is_kept_is_named(tmp_path: Path) -> None:
    put(tmp_path, "train/a.json", content(al=[1]))
    put(tmp_path, "test/a.json", content(al=[2]))

    def odd(user: User) -> tuple[Indices, Indices]:
        y = np.array(user.y)
        return y[y % 2 == 1], y[y % 2 == 1]

    with pytest.raises(DataError, match=f"^{tmp_path / 'test'}: contains no usable samples"):
        read_leaf(tmp_path, "who", odd, "", ignore)
