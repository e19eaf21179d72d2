"""Client state: versions, pruning and rolling back against a dictionary that forgets nothing."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import raysim
from raysim.errors import DamagedStateError, MachineError, RunError
from raysim.storage.client_states import NEVER, ClientStates, StateVersion
from tests.tasks import EQUAL, make_settings, make_task

CPU = torch.device("cpu")


def groups(value):
    return {"c": {"head.weight": torch.full((2,), float(value)), "n": torch.tensor(int(value))}}


def latest(states, client, before):
    """Return the value in the latest version before another, None if there is none."""
    versions = [version for version in states.versions(client) if version < before]
    return int(states.read(client, max(versions), CPU)["c"]["n"]) if versions else None


@pytest.fixture
def states(tmp_path):
    return ClientStates(tmp_path / "clients")


def files(states):
    return sorted(
        str(p.relative_to(states.folder)) for p in states.folder.rglob("*") if p.is_file()
    )


def test_what_is_written_is_read(states):
    written = {
        "c": {"a.weight": torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).t()},
        "staged": {"a.weight": torch.ones(2).bfloat16(), "n": torch.tensor(2**60)},
    }
    states.write(1_234_567, StateVersion(0, 0), written, 0)
    found = states.read(1_234_567, StateVersion(0, 0), CPU)
    assert {g: set(tensors) for g, tensors in found.items()} == {
        "c": {"a.weight"},
        "staged": {"a.weight", "n"},
    }
    for group, tensors in written.items():
        for name, tensor in tensors.items():
            assert found[group][name].dtype == tensor.dtype
            assert torch.equal(found[group][name], tensor)


def test_tensors_that_groups_share_are_written(states):
    tensor = torch.ones(3)
    states.write(1, StateVersion(0, 0), {"c": {"a": tensor}, "d": {"a": tensor}}, 0)
    found = states.read(1, StateVersion(0, 0), CPU)
    assert torch.equal(found["c"]["a"], tensor) and torch.equal(found["d"]["a"], tensor)


def test_versions_are_told_apart(states):
    written = [StateVersion(*keys) for keys in [(9, 0), (2, 1), (10, 0), (2, 0), (0, 0)]]
    for version in written:
        states.write(5, version, groups(100 * version[0] + version[1]), 0)
    assert sorted(states.versions(5)) == sorted(written)
    found = {version: int(states.read(5, version, CPU)["c"]["n"]) for version in written}
    assert found == {version: 100 * version[0] + version[1] for version in written}


def test_clients_do_not_see_each_other(states):
    for client in (0, 1, 10, 1000, 1_000_000):
        states.write(client, StateVersion(0, 0), groups(client), 0)
    for client in (0, 1, 10, 1000, 1_000_000):
        assert latest(states, client, (1, 0)) == client
    assert states.versions(100) == []


def test_writing_again_changes_nothing(states):
    for version in (StateVersion(0, 0), StateVersion(1, 0), StateVersion(1, 1)):
        states.write(5, version, groups(version[0]), 0)
    before = {name: (states.folder / name).read_bytes() for name in files(states)}
    assert latest(states, 5, (1, 0)) == 0
    states.write(5, StateVersion(1, 0), groups(1), 0)
    assert {name: (states.folder / name).read_bytes() for name in files(states)} == before


def test_a_version_that_is_there_stays(states):
    """An actor that was given up for lost, and is not, may write other bytes."""
    version = StateVersion(1, 0)
    states.write(5, version, groups(1), 0)
    states.write(5, version, groups(2), 0)
    assert int(states.read(5, version, CPU)["c"]["n"]) == 1


def test_only_what_no_checkpoint_needs_is_pruned(states):
    for number in range(5):
        states.write(5, StateVersion(number, 0), groups(number), needed_from=0)
    states.write(5, StateVersion(5, 0), groups(5), needed_from=3)
    kept = [name.split("/")[-1] for name in files(states)]
    assert kept == [f"{number}_0.safetensors" for number in (2, 3, 4, 5)]


def test_a_version_that_is_in_use_is_pruned_later(states, monkeypatch):
    """Windows removes no file that is mapped."""
    states.write(5, StateVersion(0, 0), groups(0), needed_from=0)
    states.write(5, StateVersion(1, 0), groups(1), needed_from=0)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        states.write(5, StateVersion(2, 0), groups(2), needed_from=2)
        states.delete([(5, StateVersion(0, 0))])
    assert len(files(states)) == 3
    states.write(5, StateVersion(3, 0), groups(3), needed_from=2)
    assert [name.split("/")[-1] for name in files(states)] == [
        f"{number}_0.safetensors" for number in (1, 2, 3)
    ]


def refuse(path, missing_ok=False):
    raise PermissionError(13, "is in use", str(path))


participation = st.lists(
    st.tuples(
        st.sets(st.integers(0, 2), max_size=3),  # clients of the round
        st.integers(1, 2),  # passes of the round
        st.booleans(),  # a checkpoint after it
        st.sampled_from(["go on"] * 6 + ["newest", "older"]),  # killed, and resumed from which
    ),
    min_size=1,
    max_size=12,
)


class Model:
    """Expected contents of the files: every version ever written, and the two last checkpoints."""

    def __init__(self):
        self.versions = {}
        self.kept = []

    def value(self, client, before):
        known = {v: n for (c, v), n in self.versions.items() if c == client and v < before}
        return known[max(known)] if known else None

    def latest(self, client):
        return max((v for c, v in self.versions if c == client), default=NEVER)

    def roll_back(self, number):
        self.versions = {key: n for key, n in self.versions.items() if key[1][0] < number}
        self.kept = [kept for kept in self.kept if kept <= number]


@settings(max_examples=40)
@given(participation)
def test_both_checkpoints_find_what_they_need(rounds):
    with TemporaryDirectory() as folder:
        states, model, number = ClientStates(Path(folder) / "clients"), Model(), 0
        for count, (clients, passes, checkpointed, then) in enumerate(rounds):
            keep_from = model.kept[0] if model.kept else number
            for version in (StateVersion(number, index) for index in range(passes)):
                for client in clients:
                    expected = model.value(client, version)
                    assert latest(states, client, version) == expected
                    model.versions[client, version] = 10 * count + version[1]
                    written = groups(model.versions[client, version])
                    states.write(client, version, written, keep_from)
            number += 1
            model.kept = ([*model.kept, number] if checkpointed else model.kept)[-2:]
            if then != "go on":
                number = model.kept[-1 if then == "newest" else 0] if model.kept else 0
                states.roll_back(number)
                model.roll_back(number)
                for client in range(3):
                    left = max(states.versions(client), default=NEVER)
                    assert left[:2] == model.latest(client)[:2]
            for point in [*model.kept, number]:
                for client in range(3):
                    found = latest(states, client, (point, 0))
                    assert found == model.value(client, (point, 0))


def test_rolling_back_deletes_later_rounds_and_half_written_files(states):
    for client, number in [(1, 0), (1, 2), (1, 3), (2, 3), (1001, 4)]:
        states.write(client, StateVersion(number, 1), groups(number), 0)
    half = states.folder / "00000/00000001/.3_1.safetensors.4711"
    half.write_bytes(b"half")
    assert latest(states, 1, (9, 0)) == 3
    states.roll_back(3)
    assert [name.split("/")[-2:] for name in files(states)] == [
        ["00000001", "0_1.safetensors"],
        ["00000001", "2_1.safetensors"],
    ]
    states.roll_back(0)
    assert files(states) == []


def test_round_state_has_files_of_its_own_and_goes_when_a_run_is_resumed(states):
    kept, in_round = StateVersion(1, 0), StateVersion(1, 0, in_round=True)
    states.write(5, kept, groups(1), 0)
    states.write(5, in_round, groups(2), 0)
    assert [int(states.read(5, v, CPU)["c"]["n"]) for v in (kept, in_round)] == [1, 2]
    assert states.versions(5) == [kept]
    states.roll_back(2)
    assert [name.split("/")[-1] for name in files(states)] == ["1_0.safetensors"]


def test_rolling_back_where_nothing_was_ever_written(states):
    states.roll_back(0)
    assert not states.folder.exists()


@pytest.mark.parametrize("content", [b"", b"\0" * 100, "cut"])
def test_a_damaged_file_is_named(states, content):
    states.write(7, StateVersion(2, 0), groups(1), 0)
    path = states.folder / files(states)[0]
    path.write_bytes(path.read_bytes()[:-4] if content == "cut" else content)
    with pytest.raises(RunError, match="client state is damaged") as caught:
        states.read(7, StateVersion(2, 0), CPU)
    assert str(path) in str(caught.value)


def test_another_content_than_was_written_is_refused(states):
    """A file that safetensors reads without complaint."""
    digest = states.write(7, StateVersion(2, 0), groups(1), 0)
    sealed = StateVersion(2, 0, digest=digest)
    assert int(states.read(7, sealed, CPU)["c"]["n"]) == 1
    versions = np.full((8, len(NEVER)), NEVER)
    versions[7] = (2, 0, digest)
    states.check(versions)
    path = states.folder / files(states)[0]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedStateError, match="does not match its checksum"):
        states.read(7, sealed, CPU)
    with pytest.raises(ValueError, match="does not match its checksum"):
        states.check(versions)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        states.check(versions)


def test_a_missing_file_is_named(states):
    states.write(7, StateVersion(2, 0), groups(1), 0)
    with pytest.raises(RunError, match=r"3_0.safetensors: client state is damaged: No such file"):
        states.read(7, StateVersion(3, 0), CPU)


def test_a_failure_to_force_files_to_disk_is_one_of_the_machine(states):
    with pytest.raises(MachineError, match="clients: cannot be written: No such file"):
        states.force_to_disk(np.array([NEVER, (3, 0, 5)]), 3)


def test_states_that_cannot_fit_on_the_disk_are_refused(states):
    with pytest.raises(RunError) as caught:
        states.check_space(10**18)
    text = str(caught.value)
    assert text.startswith(f"{states.folder}: client state may take 1e+06 TB, ")
    assert "are free: use fewer clients or rounds, or another `out`" in text
    assert len(text.splitlines()) == 1
    assert not states.folder.exists()


def test_states_that_fit_are_not_refused(states):
    states.check_space(2000)
    assert not states.folder.exists()


def test_a_run_needs_no_listing(tmp_path, monkeypatch):
    """A network file system may show an old one."""
    models = []
    for name in ("current", "stale"):
        settings = make_settings(tmp_path / name, **{"method.name": "scaffold"})
        raysim.run(settings, make_task(EQUAL))
        models.append((tmp_path / name / "model.safetensors").read_bytes())
        monkeypatch.setattr(ClientStates, "versions", lambda states, client: [])
    assert models[0] == models[1]


def test_tensors_are_read_in_one_order(tmp_path):
    """Clients whose tensors are in different orders cannot be summed."""
    states, names = ClientStates(tmp_path), [f"t{number}" for number in range(8)]
    group = {"c": {name: torch.zeros(1) for name in names}}
    digest = states.write(0, StateVersion(0, 0), group, 0)
    version = StateVersion(0, 0, digest=digest)
    for _ in range(10):
        assert list(states.read(0, version, torch.device("cpu"))["c"]) == names
