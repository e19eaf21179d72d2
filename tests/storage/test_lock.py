"""Folders that are locked, and what a refusal leaves of them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from raysim.errors import MachineError, RaysimError, SettingsError
from raysim.storage.lock import lock_folder, removed_if_refused


def test_a_refusal_leaves_the_folder_of_a_faster_process(tmp_path):
    path = tmp_path / "a"
    with ExitStack() as other, pytest.raises(RaysimError), removed_if_refused(path):
        other.enter_context(lock_folder(path, "held"))
        raise SettingsError("another tuner is using this folder")
    assert path.is_dir()


@pytest.mark.parametrize(
    ("error", "begun", "before", "left"),
    [
        (SettingsError("no"), False, "", {"."}),
        (SettingsError("no"), False, "a", {".", "a"}),
        (SettingsError("no"), False, "a/b", {".", "a", "a/b", "a/b/.lock"}),
        (SettingsError("no"), True, "", {"a/b/run", "a/b/run/config.json", "a/b/.lock"}),
        (MachineError("no"), False, "", {".", "a", "a/b", "a/b/.lock"}),
    ],
)
def test_a_refusal_leaves_no_new_folder(tmp_path, monkeypatch, error, begun, before, left):
    monkeypatch.chdir(tmp_path)
    Path(before).mkdir(parents=True, exist_ok=True)
    path = Path("a/b")
    with pytest.raises(RaysimError), removed_if_refused(path), lock_folder(path, "held"):
        if begun:
            (path / "run").mkdir()
            (path / "run/config.json").touch()
        raise error
    found = {str(each) for each in Path().rglob("*")} | {"."}
    assert found == left | {".", "a", "a/b"} if begun else found == left
