"""Checkpoints: what is read is what was written, and no damage or crash loses the one before."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from raysim.api.method import ServerState
from raysim.api.selection import History
from raysim.errors import RunError
from raysim.storage.checkpoints import Checkpoint, Checkpoints
from raysim.storage.client_states import NEVER
from raysim.storage.revisions import COMPONENTS, FORMULA, STAGES
from raysim.storage.run_state import RunState

CLIENTS = 3


def checkpoint(number, value=None, **info):
    """A checkpoint whose tensors depend on its number, in every kind that states hold."""
    value = float(number if value is None else value)
    groups = {
        "model": {
            "hidden.0.weight": torch.full((2, 3), value) / 3,
            "norm.num_batches_tracked": torch.tensor(2**53 + 1 + number),
            "half": torch.linspace(-value, 1, 5).to(torch.bfloat16),
            "mask": torch.tensor([True, False]),
            "empty": torch.zeros(0, 4),
        },
        "c": {"hidden.0.weight": torch.full((3, 2), 1e-30 + value).double().t()},
    }
    losses = np.array([np.nan, number / 3, np.nan])
    versions = np.array([NEVER, (number - 1, 2, -(2**62) - number), NEVER])
    history = History(losses, np.array([0, number, 0]), np.array([0, 3, 0]))
    run = RunState(
        number,
        ServerState(groups, info),
        history,
        versions,
        stack_size=number,
        components={
            "selection": {"next": np.array(number), "seen": np.array([value, -0.0])},
            "channel.topk": {"left/over": np.full((2, 0), value)},
        },
        ticks=2**53 + number,
    )
    return Checkpoint(run)


def with_state(state, number):
    return Checkpoint(replace(checkpoint(number).run, state=state))


def assert_equal(found, expected):
    found, expected = found.run, expected.run
    assert found.number == expected.number
    assert found.state.info == expected.state.info
    for name in ("losses", "last_round", "times"):
        one, other = (getattr(each.history, name) for each in (found, expected))
        assert one.dtype == other.dtype and one.tobytes() == other.tobytes()
    assert found.components.keys() == expected.components.keys()
    for owner, name in ((owner, name) for owner, of in expected.components.items() for name in of):
        one, other = (each.kept(owner)[name] for each in (found, expected))
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()
    assert found.ticks == expected.ticks
    assert found.versions.tolist() == expected.versions.tolist()
    assert found.stack_size == expected.stack_size
    assert set(found.state.groups) == set(expected.state.groups)
    for name, group in expected.state.groups.items():
        assert set(found.state.groups[name]) == set(group)
        for key, tensor in group.items():
            other = found.state.groups[name][key]
            assert (other.dtype, other.shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(other, tensor), key


def never(text):
    raise AssertionError(f"reported without need: {text}")


def folders(root):
    return sorted(path.name for path in root.iterdir())


@pytest.fixture
def two(tmp_path):
    """The folder of a run with checkpoints of rounds 3 and 4."""
    store = Checkpoints(tmp_path)
    for number in (3, 4):
        store.save(checkpoint(number))
    return tmp_path


def test_what_is_saved_is_loaded(tmp_path):
    expected = checkpoint(7, best=0.25, phase="second", count=3)
    Checkpoints(tmp_path / "new/folder").save(expected)
    assert_equal(Checkpoints(tmp_path / "new/folder").latest(CLIENTS, never), expected)


def test_there_was_never_one(tmp_path):
    assert Checkpoints(tmp_path / "nothing").latest(CLIENTS, never) is None
    assert Checkpoints(tmp_path).numbers() == []


def test_only_the_last_two_are_kept(tmp_path):
    store = Checkpoints(tmp_path)
    for number in (1, 5, 10, 1_000_000):
        store.save(checkpoint(number))
    assert store.numbers() == [10, 1_000_000]
    assert folders(tmp_path) == ["round_000010", "round_1000000"]
    assert_equal(store.latest(CLIENTS, never), checkpoint(1_000_000))


def test_a_round_can_be_saved_again(two):
    Checkpoints(two).save(checkpoint(4, value=9.0, again=1))
    assert_equal(Checkpoints(two).latest(CLIENTS, never), checkpoint(4, value=9.0, again=1))
    assert folders(two) == ["round_000003", "round_000004"]


def test_tensors_that_several_groups_share_are_saved(tmp_path):
    """A method may keep the model under two names, or keep a part of it."""
    tensor = torch.arange(6.0)
    groups = {"model": {"a": tensor}, "best": {"a": tensor}, "part": {"a": tensor[:3]}}
    saved = with_state(ServerState(groups), 1)
    Checkpoints(tmp_path).save(saved)
    assert_equal(Checkpoints(tmp_path).latest(CLIENTS, never), saved)


def cut(folder: Path) -> None:
    path = folder / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def flip(folder: Path) -> None:
    path = folder / "state.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def edit(folder: Path) -> None:
    path = folder / "state.json"
    body = json.loads(path.read_text())
    path.write_text(json.dumps({**body, "round": body["round"] + 1}))


def unseal(folder: Path) -> None:
    path = folder / "state.json"
    body = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in body.items() if key != "seal"}))


def cut_words(folder: Path) -> None:
    (folder / "state.json").write_text('{"round": 4, "in')


DAMAGES = {
    "tensors cut": cut,
    "tensors emptied": lambda folder: (folder / "state.safetensors").write_bytes(b""),
    "a bit flipped": flip,
    "tensors gone": lambda folder: (folder / "state.safetensors").unlink(),
    "words edited": edit,
    "no seal": unseal,
    "words cut": cut_words,
    "words of another kind": lambda folder: (folder / "state.json").write_text("[]"),
    "no words": lambda folder: (folder / "state.json").write_bytes(b"\0\xff" * 40),
    "words nested deeply": lambda folder: (folder / "state.json").write_text("[" * 100_000),
    "words gone": lambda folder: (folder / "state.json").unlink(),
    "all gone": lambda folder: [path.unlink() for path in folder.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_reported_and_the_one_before_is_used(two, damage):
    DAMAGES[damage](two / "round_000004")
    reports = []
    assert_equal(Checkpoints(two).latest(CLIENTS, reports.append), checkpoint(3))
    assert len(reports) == 1
    assert str(two / "round_000004") in reports[0] and "damaged" in reports[0]


def test_all_damaged(two):
    cut(two / "round_000003")
    edit(two / "round_000004")
    reports = []
    with pytest.raises(RunError, match="every checkpoint is damaged") as caught:
        Checkpoints(two).latest(CLIENTS, reports.append)
    assert str(two) in str(caught.value) and len(reports) == 2
    assert "round_000004" in reports[0] and "round_000003" in reports[1]


def test_a_damaged_one_is_none_of_the_last_two(tmp_path):
    """After a fall back from round 6 to 4, the checkpoint of round 5 must not cost round 4's."""
    store = Checkpoints(tmp_path)
    for number in (4, 6):
        store.save(checkpoint(number))
    flip(tmp_path / "round_000006")
    assert store.latest(CLIENTS, lambda text: None).run.number == 4
    store.save(checkpoint(5))
    cut(tmp_path / "round_000005")
    assert_equal(store.latest(CLIENTS, lambda text: None), checkpoint(4))


def test_half_written_ones_are_never_read(two):
    half = two / ".round_000005.node.4711.aside"
    shutil.copytree(two / "round_000004", half)
    (half / "state.json").unlink()
    assert_equal(Checkpoints(two).latest(CLIENTS, never), checkpoint(4))


def test_a_copy_kept_by_hand_is_ignored(two):
    shutil.copytree(two / "round_000003", two / "round_000003.mine")
    assert_equal(Checkpoints(two).latest(CLIENTS, never), checkpoint(4))
    assert (two / "round_000003.mine").exists()


def test_what_is_loaded_is_not_mapped(two):
    """A network file system could not delete the folder."""
    found = Checkpoints(two).latest(CLIENTS, never)
    assert found is not None and str(two) not in Path("/proc/self/maps").read_text()


def test_what_cannot_be_deleted_now_is_out_of_sight_and_deleted_later(two, monkeypatch):
    """Files that are open elsewhere stay, under other names, on a network file system."""

    def rename_open_file(folder, **options):
        for path in folder.glob("[!.]*"):
            path.rename(folder / f".nfs_{path.name}")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", rename_open_file)
        Checkpoints(two).save(checkpoint(5))
    assert Checkpoints(two).numbers() == [4, 5]
    Checkpoints(two).save(checkpoint(6))
    assert folders(two) == ["round_000005", "round_000006"]


def test_an_old_one_is_put_back_where_the_new_one_cannot_be_renamed(two, monkeypatch):
    replace_path = Path.replace

    def fail_once(path, target):
        if path.name.startswith(".round_000004") and Path(target).name == "round_000004":
            monkeypatch.undo()
            raise OSError(5, "Input/output error")
        return replace_path(path, target)

    monkeypatch.setattr(Path, "replace", fail_once)
    with pytest.raises(RunError, match="cannot be written: Input/output error"):
        Checkpoints(two).save(checkpoint(4, value=9.0))
    assert_equal(Checkpoints(two).latest(CLIENTS, never), checkpoint(4))
    assert folders(two) == ["round_000003", "round_000004"]


def test_one_that_a_check_refuses_is_damaged(two):
    """It seals files outside its folder."""

    def check(found):
        if found.run.number == 4:
            raise ValueError("clients/7 does not match its checksum")

    reports = []
    assert_equal(Checkpoints(two).latest(CLIENTS, reports.append, check), checkpoint(3))
    assert len(reports) == 1 and "(clients/7 does not match its checksum)" in reports[0]


def failing(kind):
    groups = checkpoint(5).run.state.groups
    if kind == "tensors":  # refused by safetensors: the folder is there, and empty
        return with_state(ServerState({**groups, "x": {"a": torch.eye(2).to_sparse()}}), 5)
    return with_state(ServerState(groups, {"x": object()}), 5)  # refused after the tensors


@pytest.mark.parametrize("kind", ["tensors", "words"])
@pytest.mark.parametrize("again", [False, True])
def test_a_crash_in_the_middle_of_writing_leaves_the_old_ones(two, kind, again):
    if again:  # the one that crashes would replace another of the same round
        Checkpoints(two).save(checkpoint(5))
    expected = folders(two)
    with pytest.raises((RuntimeError, TypeError)):
        Checkpoints(two).save(failing(kind))
    store = Checkpoints(two)
    assert folders(two) == expected
    assert_equal(store.latest(CLIENTS, never), checkpoint(5 if again else 4))


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="round_000001: cannot be written"):
        Checkpoints(tmp_path / "file/checkpoints").save(checkpoint(1))


def test_revisions_are_those_of_the_identity(tmp_path):
    checkpoints, revisions = Checkpoints(tmp_path), {name: 1 for name in (FORMULA, *COMPONENTS)}
    assert checkpoints.revisions() is None
    revisions |= {FORMULA: 3, "revision of the aggregation": 2, STAGES: {"topk": 2}}
    checkpoints.save(replace(checkpoint(1), identity={**revisions, "network": "0a"}))
    assert checkpoints.revisions() == revisions
    cut_words(tmp_path / "round_000001")
    assert checkpoints.revisions() is None
