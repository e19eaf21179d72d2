"""Run directories that are renamed, deleted or replaced, and locks that are removed, in mid-run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import raysim
from tests.tasks import make_settings, make_task, model_of

SIZES = (12, 9)
CHOSEN = {"rounds": 4, "local.epochs": 1}


def _replaced(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.mkdir()


HOW = {
    "renamed": (lambda path: path.rename(path.with_name("other")), "was renamed to "),
    "deleted": (shutil.rmtree, "was deleted or moved away"),
    "replaced": (_replaced, "was renamed to "),
}


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
@pytest.mark.parametrize("how", HOW)
def test_a_directory_that_is_gone_stops_the_run_and_is_not_made_anew(tmp_path, how, method):
    chosen, path = CHOSEN | {"method.name": method}, tmp_path / "run"
    expected = raysim.run(make_settings(tmp_path / "whole", **chosen), make_task(SIZES)).run_dir
    move, said = HOW[how]
    with (
        pytest.raises(raysim.RunError, match=said) as caught,
        raysim.rounds(make_settings(path, **chosen), make_task(SIZES)) as rounds,
    ):
        for row in rounds:
            if row["round"] == 2:
                move(path)
    assert caught.value.exit_code == 75 and len(str(caught.value).splitlines()) == 1
    assert not path.exists() or not [*path.iterdir()]
    if how != "deleted":
        moved = Path(str(caught.value).rpartition(", resume ")[2])
        assert moved == tmp_path / "other"
        raysim.resume(moved, make_task(SIZES))
        assert model_of(moved) == model_of(expected)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("finished", [True, False])
def test_a_directory_that_is_gone_at_the_end_is_not_made_anew(tmp_path, how, finished):
    path, (move, said) = tmp_path / "run", HOW[how]
    with (
        pytest.raises(raysim.RunError, match=said),
        raysim.rounds(make_settings(path, **CHOSEN), make_task(SIZES)) as rounds,
    ):
        for row in rounds:
            if row["round"] == (2 if finished else 4):
                move(path)
                if finished:
                    rounds.finish()
    assert not path.exists() or not [*path.iterdir()]


def test_a_lock_that_is_removed_lets_no_second_run_in(tmp_path):
    settings = make_settings(tmp_path, **CHOSEN)
    with raysim.rounds(settings, make_task(SIZES)) as rounds:
        next(rounds)
        (tmp_path / ".lock").unlink()
        with pytest.raises(raysim.RunError, match="another process is writing to it"):
            raysim.run(settings, make_task(SIZES))
        assert [row["round"] for row in rounds] == [2, 3, 4]
    assert rounds.result.summary["rounds"] == 4
