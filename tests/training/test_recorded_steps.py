"""Steps as scripts: the same bits as the steps themselves, and what is refused."""

from __future__ import annotations

import copy
import io
import pickle
import random
from functools import partial
from itertools import repeat

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from raysim.api.rules import Batch, LocalValues, Rules, Transform
from raysim.config import LocalSettings
from raysim.numbers.seeds import torch_generator
from raysim.numbers.tensors.torch_private import compile_script, foreach_add
from raysim.training import objective, operations, recorded_steps, sequential
from raysim.training.job import ClientJob
from raysim.training.network import Network
from raysim.training.operations import UnrecordableError, source_of
from raysim.training.sequential import SequentialTrainer

CPU = torch.device("cpu")
CLASSES = 3


class Recurrent(nn.Module):
    """Embedding, LSTM, the last step's output."""

    def __init__(self):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(7, 4), nn.LSTM(4, 5, 2, batch_first=True)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.head(self.lstm(self.embedding(x))[0][:, -1])


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.head(self.layer(x.unflatten(1, (2, 6))).mean(1))


def dense():
    return nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def normed():
    return nn.Sequential(
        nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(inplace=True), dense_head()
    )


def dense_head():
    return nn.Linear(8, CLASSES)


def convolving():
    return nn.Sequential(
        nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(8, CLASSES),
    )  # fmt: skip


NETWORKS = {
    "dense": dense,
    "normed": normed,
    "convolving": convolving,
    "recurrent": Recurrent,
    "attentive": Attentive,
    "binary": lambda: nn.Linear(12, 1),
}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Have steps written down soon, and Python's generators as they were afterwards."""
    monkeypatch.setattr(recorded_steps, "STEPS_BEFORE", 2)
    python, numpy = random.getstate(), np.random.get_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)


def clients(name, sizes=(23, 9, 23)):
    generator = np.random.default_rng(1)
    for n in sizes:
        x = generator.normal(size=(n, 12)).astype(np.float32)
        if name == "recurrent":
            x = generator.integers(0, 7, (n, 6))
        y = generator.integers(0, 2 if name == "binary" else CLASSES, n)
        yield Batch(torch.from_numpy(x), torch.from_numpy(y))


def trainer_of(module, precision="fp32", **options):
    local = LocalSettings(**{"batch_size": 5} | options)
    return SequentialTrainer(Network(copy.deepcopy(module)).placed(CPU), local, precision)


def train(trainer, data, rules=None, trainable=None, states=None):
    """Train clients in turn from the same start; return their uploads and logs."""
    start = {n: t.detach().clone() for n, t in trainer.network.tensors().items()}
    results = []
    for seed, (batch, state) in enumerate(zip(data, states or repeat({}), strict=False)):
        job = ClientJob(
            rules=rules or Rules(),
            epochs=2,
            lr=0.1,
            trainable=trainable,
            data=batch,
            broadcast={"model": start},
            state=state,
            personal={},
            augment=lambda x, generator: x,
            values=LocalValues(trainer.local.temperature),
            batches=partial(np.random.default_rng, seed),
            torch_seed=seed,
            generator=partial(torch_generator, seed),
        )
        upload, log = trainer.run(job)
        model = {n: t.detach().clone() for n, t in upload.sums["model"].items()}
        results.append((model, log))
    return results


def has_bf16_lstm():
    lstm = nn.LSTM(4, 5)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            lstm(torch.ones(2, 3, 4))
    except RuntimeError:
        return False
    return True


def found(trainer, with_transforms=True):
    """Return whether each shape that came often enough has a script."""
    kinds = [k for key, k in trainer.recorded._kinds.items() if with_transforms or not key[0][2]]
    return [bool(script) for kind in kinds for script in kind.scripts.values()]


def assert_same_bits(first, second):
    for (model, log), (other, other_log) in zip(first, second, strict=True):
        assert all(torch.equal(model[name], other[name]) for name in model)
        for name in ("steps", "train_loss", "objective"):
            assert getattr(log, name) == getattr(other_log, name)


def plain(trainer):
    """The same trainer, taking every step itself."""
    trainer.recorded = None
    return trainer


def halved(view, gradients, batch, state):
    """A transform that asks for another gradient, with the step's own random draws."""
    beside = view.gradient(view.start, batch)
    return {name: (gradients[name] + beside[name]) / 2 for name in gradients}, state


def doubled(view, gradients, batch, state):
    return {name: gradient * 2 for name, gradient in gradients.items()}, state


def test_further_gradients_of_a_step_are_taken_by_its_script(monkeypatch):
    """Autograd takes two gradients of each step before it is recorded, and those of recording.

    Then the script is compared with the step, on that batch and on the next one.

    The transform itself is not recorded: one gradient is taken before it asks for the other.
    """
    calls: list[str] = []
    backward = sequential.gradients_of
    for module in (sequential, objective):  # of the step, and of `view.gradient`
        monkeypatch.setattr(module, "gradients_of", lambda *a: calls.append("") or backward(*a))
    (data,) = clients("dense", (60,))
    train(trainer_of(dense()), [data], Rules(transforms=(Transform("halved", halved),)))
    assert len(calls) == 2 * 2 + 1 + 2 + 2


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ({}, Rules()),
        ({"temperature": 0.5}, Rules()),
        ({"momentum": 0.9, "weight_decay": 0.01}, Rules()),
        ({"precision": "bf16"}, Rules()),
        ({}, Rules(transforms=(Transform("halved", halved),))),
    ],
    ids=["plain", "temperature", "momentum", "bf16", "transform"],
)
def test_a_script_has_the_bits_of_the_steps(name, options, rules):
    if name == "recurrent" and "precision" in options and not has_bf16_lstm():
        pytest.skip("torch has no LSTM in bf16 on this processor")
    torch.manual_seed(0)
    module = NETWORKS[name]()
    scripted, stepped = trainer_of(module, **options), plain(trainer_of(module, **options))
    results = train(scripted, clients(name), rules)
    gradients = found(scripted, with_transforms=False)
    assert all(gradients) and len(gradients) >= 2
    assert_same_bits(results, train(stepped, clients(name), rules))


def second_stream(view, outputs, batch):
    """A penalty with the outputs of a frozen model, for which autograd is off."""
    return (outputs.logits - view.at(view.start, batch.x).logits).square().mean()


@pytest.mark.parametrize(("name", "recorded"), [("recurrent", True), ("attentive", False)])
def test_a_frozen_stream_is_recorded_with_autograd_off_or_not_at_all(name, recorded):
    """An LSTM takes another kernel, and an encoder layer another path, unless it is watched."""
    torch.manual_seed(0)
    module, rules = NETWORKS[name](), Rules(penalties=(second_stream,))
    scripted, stepped = (trainer_of(module, batch_size=1) for _ in range(2))
    results = train(scripted, clients(name, (60, 60)), rules)
    assert found(scripted) and {*found(scripted)} == {recorded}
    assert_same_bits(results, train(plain(stepped), clients(name, (60, 60)), rules))


def test_a_script_sets_the_mode_of_each_call_and_leaves_that_of_its_caller():
    x = torch.randn(4)

    def step():
        y = x * 2
        with torch.no_grad():
            return [y + 1, y * 3]

    source = source_of(step, [x])
    lines = [line.strip() for line in source.splitlines()[1:-1]]
    modes = [n for n, line in enumerate(lines) if "set_grad_enabled" in line]
    assert modes == [0, 2] and lines[2] == "torch.set_grad_enabled(False)"
    script = compile_script(source, "step")
    for mode in (True, False):
        with torch.set_grad_enabled(mode):
            assert torch.equal(script(x)[1], x * 6)
            assert torch.is_grad_enabled() == mode


def test_a_gradient_behind_a_recorded_transform_has_the_draws_of_its_step():
    torch.manual_seed(0)
    module = normed()
    behind = Transform("halved", halved, after_momentum=True)
    rules = Rules(transforms=(Transform("doubled", doubled), behind))
    scripted, stepped = (trainer_of(module, momentum=0.9) for _ in range(2))
    results = train(scripted, clients("normed"), rules)
    assert any(found(scripted))
    assert_same_bits(results, train(plain(stepped), clients("normed"), rules))


def test_scripts_are_of_what_is_trained():
    torch.manual_seed(0)
    module = normed()
    scripted, stepped = trainer_of(module), plain(trainer_of(module))
    for trainable in (None, frozenset({"4.weight"}), None):
        results = train(scripted, clients("normed"), trainable=trainable)
        assert_same_bits(results, train(stepped, clients("normed"), trainable=trainable))
    assert len(scripted.recorded._kinds) == 2 and all(found(scripted))


def test_scripts_are_of_the_tensors_shapes():
    torch.manual_seed(0)
    small, large = dense(), nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, CLASSES))
    trainer = trainer_of(small)
    train(trainer, clients("dense"))
    trainer.network.load({n: t.detach() for n, t in large.named_parameters()})
    results = train(trainer, clients("dense"))
    assert_same_bits(results, train(plain(trainer_of(large)), clients("dense")))
    assert len(trainer.recorded._kinds) == 2 and all(found(trainer))


def test_few_steps_are_taken_as_they_are(monkeypatch):
    monkeypatch.setattr(recorded_steps, "STEPS_BEFORE", 1000)
    trainer = trainer_of(dense())
    train(trainer, clients("dense"))
    assert not found(trainer)


def printed(value):
    file = io.StringIO()
    print(value, file=file)
    return file.getvalue()


def packed(y):
    lengths = 1 + (y > 0).sum(1).clamp(max=2)
    rows = nn.utils.rnn.pack_padded_sequence(y, lengths, batch_first=True, enforce_sorted=False)
    return rows.data.sum()


def set_data(y):
    other = torch.zeros_like(y)
    other.data = y + 1
    return other


class Impure(nn.Module):
    """A layer that does more than operations on tensors."""

    def __init__(self, how):
        super().__init__()
        self.layer, self.how, self.calls = nn.Linear(12, CLASSES), how, 0
        self.elsewhere = [torch.full((CLASSES,), 0.5)]

    def forward(self, x):
        y = self.layer(x)
        return y * self.factor(y.detach())

    def factor(self, y: Tensor):
        generator = torch.Generator().manual_seed(1)
        self.calls += self.how == "counter"
        return {
            "item": lambda: 2.0 if y.sum().item() > 0 else 1.0,
            "branch": lambda: 2.0 if y.sum() > 0 else 1.0,
            "list": lambda: sum(y.sum(0).tolist()),
            "numpy": lambda: float(y.numpy().sum()),
            "asarray": lambda: float(np.asarray(y).sum()),
            "dlpack": lambda: float(np.from_dlpack(y).sum()),
            "repr": lambda: 1 + len(repr(y)) / 100,
            "str": lambda: float(str(y).partition("[[")[2].partition(",")[0]),
            "format": lambda: float(f"{y.sum(0)}".partition("[")[2].partition(",")[0]),
            "format one": lambda: float(f"{y.sum():.3f}"),
            "print": lambda: float(printed(y.sum()).partition("(")[2].partition(")")[0]),
            "pickle": lambda: 1 + len(pickle.dumps(y)) / 100,
            "apply": lambda: y.clone().apply_(lambda value: value + 1),
            "data": lambda: set_data(y),
            "packed": lambda: packed(y),
            "split": lambda: torch.tensor_split(y, (y[:, 0] > 0).sum().view(1))[0].sum() + 1,
            "mask": lambda: y[y > 0].mean() + 1,
            "nonzero": lambda: float(len(y.argmax(1).nonzero())),
            "elsewhere": lambda: self.elsewhere[0],
            "generator": lambda: torch.rand(CLASSES, generator=generator),
            "random": lambda: 1 + random.random(),
            "np.random": lambda: 1 + np.random.rand(),
            "counter": lambda: 1 + self.calls,
        }[self.how]()


@pytest.mark.parametrize(
    "how",
    [
        *("item", "branch", "list", "numpy", "asarray", "dlpack", "mask", "nonzero"),
        *(
            "repr",
            "str",
            "format",
            "format one",
            "print",
            "pickle",
            "apply",
            "data",
            "split",
            "packed",
        ),
        *("elsewhere", "generator", "random", "np.random", "counter"),
    ],
)
def test_what_is_more_than_operations_is_refused_and_goes_on_as_it_was(how):
    torch.manual_seed(0)
    module = Impure(how)
    scripted, stepped = trainer_of(module), plain(trainer_of(module))
    random.seed(1)
    np.random.seed(1)
    results = train(scripted, clients("dense"))
    assert found(scripted) and not any(found(scripted))
    random.seed(1)
    np.random.seed(1)
    assert_same_bits(results, train(stepped, clients("dense")))


def test_a_value_that_is_frozen_differs_on_the_next_batch(monkeypatch):
    """Whatever read it: here nobody notices."""
    monkeypatch.setattr(operations, "READS", frozenset())
    trainer = trainer_of(Impure("list"))
    train(trainer, clients("dense"))
    assert found(trainer) and not any(found(trainer))


def test_a_script_that_returns_other_bits_is_refused(monkeypatch):
    def altered(step, given):
        return source_of(step, given).replace("torch.ops.aten.relu(", "torch.ops.aten.sigmoid(")

    monkeypatch.setattr(recorded_steps, "source_of", altered)
    trainer = trainer_of(dense())
    train(trainer, clients("dense"))
    assert found(trainer) and not any(found(trainer))


def test_an_error_of_a_step_is_its_own():
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls = nn.Linear(12, CLASSES), 0

        def forward(self, x):
            self.calls += 1
            if self.calls > 2:
                raise ValueError("no more")
            return self.layer(x)

    with pytest.raises(ValueError, match="no more"):
        train(trainer_of(Picky()), clients("dense"))


def test_source_by_hand():
    x, w = torch.randn(4, 3), torch.randn(3)

    def step():
        y = (x * w).add_(1.5, alpha=2)
        return y.sum(0), y.detach(), w

    source = (
        "def step(t0: Tensor, t1: Tensor):\n"
        "    torch.set_grad_enabled(True)\n"
        "    t2 = torch.ops.aten.mul(t0, t1)\n"
        "    t2 = torch.ops.aten.add_(t2, 1.5, alpha=2)\n"
        "    t3 = torch.ops.aten.sum(t2, [0])\n"
        "    return t3, t2, t1\n"
    )
    assert source_of(step, [x, w]) == source


def test_source_writes_over_memory_that_nobody_reads():
    x, w = torch.randn(4, 3), torch.randn(3)

    def step():
        y = x * w
        z = y + w
        flat, doubled = z.view(-1), z * 2
        (scaled,) = foreach_add([flat], [flat], 0.5)
        return doubled * 3, scaled.sum()

    source = (
        "def step(t0: Tensor, t1: Tensor):\n"
        "    torch.set_grad_enabled(True)\n"
        "    t2 = torch.ops.aten.mul(t0, t1)\n"  # x is the caller's
        "    t3 = torch.ops.aten.add_(t2, t1)\n"
        "    t4 = torch.ops.aten.view(t3, [-1])\n"
        "    t5 = torch.ops.aten.mul(t3, 2)\n"  # z is read later, through its view
        "    t6 = torch.ops.aten.add(t4, t4, alpha=0.5)\n"  # both arguments are the same
        "    t7 = torch.ops.aten.mul_(t5, 3)\n"
        "    t8 = torch.ops.aten.sum(t6)\n"
        "    return t7, t8\n"
    )
    assert source_of(step, [x, w]) == source


def test_a_tensor_from_elsewhere_is_named():
    x, other = torch.ones(2), torch.ones(3, 1)
    with pytest.raises(UnrecordableError, match=r"a tensor \(3, 1\) is from elsewhere"):
        source_of(lambda: [x + other], [x])
