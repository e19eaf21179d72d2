"""`raysim export --to torch` and `--to onnx`: what other programs compute, and the model card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import raysim
from raysim.samples.arrow import open_split
from tests.driver import used
from tests.tasks import make_settings, make_task


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with a run on a table, a regression on it, and the test samples."""
    folder = tmp_path_factory.mktemp("used")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYSIM_DATA", str(folder / "data"))
        used.trained_with_test(folder)
        changes = {"dataset.target": "load", "dataset.task": "regression", "rounds": 2}
        used.trained(folder, out=str(folder / "regression"), **changes)
        yield folder


@pytest.fixture
def command(folder, tmp_path, monkeypatch, capsys):
    for run in ("run", "regression"):
        (tmp_path / run).symlink_to(folder / run)
    return used.command_in(tmp_path, monkeypatch, capsys)


def inputs(folder: Path, run: str) -> torch.Tensor:
    if run == "run":
        return torch.tensor(open_split(folder / "test.arrow").x)
    shape = raysim.load(folder / run)
    return torch.randn(5, next(shape.parameters()).shape[1])


@pytest.mark.parametrize("run", ["run", "regression"])
def test_the_program_of_torch(folder, command, tmp_path, run):
    code, out, _ = command("export", run, "--to", "torch", "-o", "torch")
    assert code == 0 and out == "model: torch\n"
    network = raysim.load(folder / run)
    program = torch.export.load(tmp_path / "torch/model.pt2").module()
    for x in (inputs(folder, run), inputs(folder, run)[:1]):
        with torch.no_grad():
            assert torch.allclose(program(x), network(x), rtol=1e-5, atol=1e-5)
    network.load_state_dict(load_file(tmp_path / "torch/model.safetensors"))


@pytest.mark.parametrize("run", ["run", "regression"])
def test_the_graph_of_onnx(folder, command, tmp_path, run):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    code, _, said = command("export", run, "--to", "onnx")
    assert code == 0, said
    session = runtime.InferenceSession(str(tmp_path / "model_onnx/model.onnx"))
    x = inputs(folder, run)
    with torch.no_grad():
        expected = raysim.load(folder / run)(x).numpy()
    for rows in (x, x[:1]):
        (found,) = session.run(None, {"inputs": rows.numpy()})
        assert np.allclose(found, expected[: len(rows)], rtol=1e-5, atol=1e-5)


def test_the_card_says_how_rows_become_inputs(folder, command, tmp_path):
    assert command("export", "run", "--to", "torch")[0] == 0
    text = (tmp_path / "model_torch/README.md").read_text()
    assert text.startswith("---\nlicense: unknown\n")
    assert "- `city`: 1 for its word and 0 for others, of `Bonn`, `Oslo`, `Rome`" in text
    assert "- `seen`: month, weekday (Monday is 0) and hour of a date (YYYY-MM-DD), less" in text
    ages = [row[1] for row in used.rows(120) if row[1] != ""]
    assert f"- `age`: number, less {np.mean(ages):.6g}, by {np.std(ages):.6g}" in text
    assert "Classes in order: `no`, `yes`." in text
    summary = json.loads((folder / "run/summary.json").read_text())
    assert f"| `final_accuracy` | {summary['final_accuracy']:.6g} |" in text
    settings = json.loads((tmp_path / "model_torch/settings.json").read_text())
    assert "- round 4 of 4, 3 clients a round" in text
    assert settings["local"]["lr"] == 0.1 and "out" not in settings


def test_a_clients_own_model(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    used.trained(tmp_path, **{"method.name": "ditto", "rounds": 2, "local.epochs": 1})
    command = used.command_in(tmp_path, monkeypatch, capsys)
    assert command("export", "run", "--to", "torch", "--client", "s1")[0] == 0
    found = load_file(tmp_path / "client_s1_torch/model.safetensors")
    own = raysim.client_model(tmp_path / "run", "s1")
    assert all(torch.equal(found[name], own[name]) for name in own)
    assert not any(torch.equal(found[n], t) for n, t in load_file("run/model.safetensors").items())
    text = Path("client_s1_torch/README.md").read_text()
    assert "# run\n\nThe model of client s1 of" in text
    assert "- local training: 1 epoch, batches of" in text


def test_weights_of_the_global_model_of_a_task_in_memory_too(tmp_path, monkeypatch, capsys):
    result = raysim.run(make_settings(tmp_path / "run", rounds=1), make_task((8, 7)))
    command = used.command_in(tmp_path, monkeypatch, capsys)
    assert command("export", "run")[:2] == (0, "model: model.safetensors\n")
    found = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in result.params.items())
    code, _, said = command("export", "run", "--to", "torch")
    assert code == 2 and "had its own task" in said and said.count("\n") == 1


def _flipped(*names: str) -> Any:
    def damage(run: Path) -> None:
        for name in names:
            content = bytearray((run / name).read_bytes())
            content[len(content) // 2] ^= 1
            (run / name).write_bytes(content)

    return damage


LAST = "checkpoints/round_000004/state.safetensors"
REFUSED: dict[str, tuple[Any, tuple[str, ...]]] = {
    "--out=taken: must be a new folder": (None, ("-o", "taken")),
    "--out=no/x: must be a new folder in an existing one": (None, ("-o", "no/x")),
    "--out=run/x: lies in the run directory": (None, ("-o", "run/x")),
    "--client=9: must be from 0 to 2": (None, ("--client", "9")),
    "'pickle' is not one of 'safetensors', 'torch', 'onnx', 'huggingface', 'peft'": (
        None,
        ("--to", "pickle"),
    ),
    "model.safetensors: does not match its checksum": (_flipped("model.safetensors", LAST), ()),
    "preparation.json: is damaged": (_flipped("preparation.json"), ()),
    "run: holds no run": (
        lambda run: [(run / "config.json").unlink(), shutil.rmtree(run / "checkpoints")],
        (),
    ),
    "model.safetensors: cannot be read": (
        lambda run: [(run / "model.safetensors").unlink(), shutil.rmtree(run / "checkpoints")],
        (),
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_exported_is_one_line(folder, tmp_path, monkeypatch, capsys, message):
    shutil.copytree(folder / "run", tmp_path / "run")
    (tmp_path / "taken").mkdir()
    damage, words = REFUSED[message]
    if damage:
        damage(tmp_path / "run")
    before = used.files(tmp_path)
    command = used.command_in(tmp_path, monkeypatch, capsys)
    code, _, said = command("export", "run", "--to", "torch", *words)
    assert code == 2 and message in said and said.count("\n") == 1, said
    assert used.files(tmp_path) == before and len([*tmp_path.iterdir()]) == 2


class Branching(torch.nn.Linear):
    """Network with a branch on values, which no exporter can follow."""

    def __init__(self) -> None:
        super().__init__(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


class Counting(torch.nn.Linear):
    """Network whose outputs are others in each call, which a program cannot know."""

    def __init__(self) -> None:
        super().__init__(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * next(CALLS)


CALLS = count(1)


class Branches(raysim.Model):
    """Builds the first."""

    def build(self, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        return Branching()


class Counts(raysim.Model):
    """Builds the second."""

    def build(self, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        return Counting()


@pytest.mark.parametrize(
    ("model", "message"),
    {
        "Branches": "its network cannot be exported by torch.export: ",
        "Counts": "the model exported by torch.export computes other outputs: they differ by ",
    }.items(),
)
def test_a_network_that_cannot_be_exported_is_one_line(
    tmp_path, monkeypatch, capsys, model, message
):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    parts = {"dataset.name": "tests.blobs:Blobs", "model.name": f"{__name__}:{model}"}
    changes = {**parts, "partition.name": "iid", "clients": 3, "rounds": 1}
    raysim.run(make_settings(tmp_path / "run", **changes))
    command = used.command_in(tmp_path, monkeypatch, capsys)
    code, _, said = command("export", "run", "--to", "torch")
    assert code == 2 and message in said
    assert said.count("\n") == 1 and not (tmp_path / "model_torch").exists()
