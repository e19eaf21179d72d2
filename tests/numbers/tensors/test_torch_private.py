"""Torch's private parts: named in one module, and not needed."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import raysim
from raysim.numbers.tensors import torch_private
from raysim.training import recorded_steps
from tests.tasks import make_settings, make_task, model_of

ROOT = Path(__file__).parents[3]
PRIVATE = re.compile(
    r"torch\._C\b|torch\.jit|_execution_engine|_python_dispatch|_foreach_|_forward_hooks"
    r"|_forward_pre_hooks|_backward_hooks|\._parameters\b|\._buffers\b|_ConvNd"
    r"|_BatchNorm\b|\._schema\b"
)
SOURCE = Path(torch_private.__file__)
PARTS = re.findall(r"^(_\w+) = _part\(", SOURCE.read_text(), re.MULTILINE)


def test_one_module_names_them():
    sources = {p.resolve() for p in (ROOT / "raysim").rglob("*.py")}
    for folder in ("workloads", "tuning", "cluster"):
        sources |= {p.resolve() for p in (ROOT / folder).rglob("*.py")}
    naming = {p.name for p in sources if PRIVATE.search(p.read_text())}
    assert len(sources) > 100 and naming == {SOURCE.name}


@pytest.fixture
def without_parts(monkeypatch):
    """Take all private parts away when called."""

    def take_away():
        assert len(PARTS) >= 10
        for part in PARTS:
            monkeypatch.setattr(torch_private, part, None)
        monkeypatch.setattr(torch_private, "_HOOKS", ("_no_such_hooks",))

    return take_away


CASES = {
    "fedavg": {"local.momentum": 0.5, "local.nesterov": True, "local.weight_decay": 0.01},
    "fedprox": {},
    "scaffold": {},
    "fedmax": {"method.beta": 10},
    "mifl": {"local.temperature": 0.5},
    "fedprox stacked": {"engine.vectorize": 3},
}


@pytest.mark.parametrize("case", CASES)
def test_training_without_them_has_the_same_bits(tmp_path, monkeypatch, without_parts, case):
    recorded = []

    def compiled(*arguments):
        recorded.append(arguments)
        return compile_script(*arguments)

    compile_script = recorded_steps.compile_script
    monkeypatch.setattr(recorded_steps, "compile_script", compiled)
    monkeypatch.setattr(recorded_steps, "STEPS_BEFORE", 2)
    overrides = {"method.name": case.split()[0], "rounds": 2, **CASES[case]}
    task = make_task((1, 3, 60, 17, 25))
    raysim.run(make_settings(tmp_path / "with", **overrides), task)
    assert recorded or "stacked" in case
    recorded.clear()
    without_parts()
    raysim.run(make_settings(tmp_path / "without", **overrides), task)
    assert not recorded
    assert model_of(tmp_path / "with") == model_of(tmp_path / "without")


def test_parts_that_torch_lacks_are_found_missing(monkeypatch):
    try:
        with monkeypatch.context() as patch:
            patch.delattr(torch.jit, "CompilationUnit")
            patch.delattr(torch, "_foreach_add")
            importlib.reload(torch_private)
            assert not torch_private.can_record_steps()
            (found,) = torch_private.foreach_add([torch.ones(2)], [torch.ones(2)], 0.5)
            assert found.tolist() == [1.5, 1.5]
    finally:
        importlib.reload(torch_private)
    assert torch_private.can_record_steps()


def test_a_module_may_have_hooks_where_that_is_unknown(monkeypatch):
    module = nn.Linear(2, 2)
    assert not torch_private.has_hooks(module)
    module.register_forward_hook(lambda *given: None)
    assert torch_private.has_hooks(module)
    monkeypatch.setattr(torch_private, "_HOOKS", ("_no_such_hooks",))
    assert torch_private.has_hooks(nn.Linear(2, 2))


def test_lists_are_mixed_alike_without_them(without_parts):
    given = [torch.tensor([1.0, 3]), torch.tensor([7.0])], [torch.tensor([5.0, 9]), torch.ones(1)]

    def mixed():
        squares = torch_private.foreach_squares(given[0])
        return [*squares, *torch_private.foreach_mixed(*given, [0.5, 2], [1, 3])]

    expected = [[1, 9], [49], [5.5, 10.5], [17]]
    assert [each.tolist() for each in mixed()] == expected
    without_parts()
    assert [each.tolist() for each in mixed()] == expected


def test_copies_convert_dtypes_whatever_stands_first():
    targets = [torch.zeros(2), torch.zeros(1, dtype=torch.int64), torch.zeros(3)]
    torch_private.foreach_copy_(targets, [torch.ones(2), torch.tensor([7.0]), torch.arange(3)])
    assert [target.tolist() for target in targets] == [[1, 1], [7], [0, 1, 2]]
    assert targets[1].dtype == torch.int64
