"""Training loops of a user's own, beside runs of the engine's own steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import raysim
from raysim.methods.fedavg import FedAvg
from raysim.testing import LoopContract
from raysim.testing.tasks import SIZES, SmallNet, small_task
from tests.tasks import EQUAL, UNEQUAL, Notes, make_settings, make_task, model_of

HERE = __name__
LOOP = f"{HERE}:plain"
Loop = Callable[[raysim.Client], Any]


def plain(client: raysim.Client) -> dict[str, Any]:
    """Take FedAvg's steps."""
    optimizer = client.optimizer()
    for x, y in client.batches():
        optimizer.zero_grad()
        loss = F.cross_entropy(client.model(x), y)
        loss.backward()
        optimizer.step()
    return {"last_loss": loss}


def by_loader(client: raysim.Client) -> None:
    optimizer, batches = client.optimizer(client.model.parameters()), client.loader()
    for _ in range(client.epochs):
        assert len(batches) == len([take(client, optimizer, *batch) for batch in batches])


def take(client: raysim.Client, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> float:
    """Take a step; return the loss before it."""
    optimizer.zero_grad()
    loss = F.cross_entropy(client.model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def counting(client: raysim.Client) -> dict[str, float]:
    """Train, and keep a number and a tensor."""
    plain(client)
    client.state["rounds"] = client.state.get("rounds", 0) + 1
    before = client.state.get("mean", torch.zeros(3))
    client.state["mean"] = before + client.model.head.bias.detach()
    return {"rounds": client.state["rounds"]}


def task_of(train: Loop, sizes: tuple[int, ...] = UNEQUAL) -> raysim.Task:
    task = make_task(sizes)
    return raysim.Task(task.model, task.clients, task.test, train=train)


def run(out: Path, train: Loop, **overrides: Any) -> raysim.Result:
    return raysim.run(make_settings(out, **overrides), task_of(train))


STEPS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "all of SGD": (
        "mlp",
        {
            **{"local.momentum": 0.9, "local.nesterov": True, "local.weight_decay": 0.01},
            **{"local.clip_norm": 0.1, "local.epochs": 2},
        },
    ),
    "AdamW and BatchNorm": (
        "residual",
        {"local.optimizer": "adamw", "local.weight_decay": 0.1, "local.lr": 0.01},
    ),
    "steps, convolutions": ("cnn", {"local.steps": 5, "local.drop_last": True}),
    "an LSTM, a schedule": ("lstm", {"local.schedule": "cosine", "local.batch_size": "full"}),
}


@pytest.mark.parametrize("case", STEPS)
def test_fedavgs_steps_in_a_loop_give_the_bits_of_fedavg(case, tmp_path):
    family, settings = STEPS[case]
    for out, train in (("engine", None), ("loop", plain)):
        task = small_task(family)
        own = raysim.Task(task.model, task.clients, task.test, train=train)
        raysim.run(make_settings(tmp_path / out, **settings), own)
    assert model_of(tmp_path / "engine") == model_of(tmp_path / "loop")


@pytest.mark.parametrize(
    "settings",
    [
        {"method.name": "fedper", "evaluation.holdout": 0.2},
        {"server.name": "adam", "server.lr": 0.01},
        {"channel": {"topk": {"fraction": 0.1}, "error_feedback": {}}},
        {"method.name": "fedbabu"},
        {"aggregation.name": "median", "attack.name": "label_flip", "attack.fraction": 0.3},
        {"aggregation.name": "fltrust", "aggregation.root": 10},
        {"channel.masks": {}, "selection.name": "round_robin"},
        {"method.name": "fedbuff", "clock.name": "devices"},
        {"clock.name": "devices", "clock.policy": "deadline", "clock.deadline": 60.0},
        {"evaluation.finetune_epochs": 1, "evaluation.local_test": 0.2},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_what_is_around_the_steps_is_as_without_a_loop(settings, tmp_path):
    def silent(client: raysim.Client) -> None:
        plain(client)

    rows = []
    for out, train in (("engine", None), ("loop", silent)):
        own = task_of(train, EQUAL) if train else make_task(EQUAL)
        found = raysim.run(make_settings(tmp_path / out, **settings), own).metrics.to_pylist()
        losses = ("train_loss", "objective", "root_train_loss")
        rows.append(
            [
                {k: v for k, v in row.items() if k not in losses and not k.endswith("_seconds")}
                for row in found
            ]
        )
    for each in rows:
        for row in each:
            row.pop("seconds")
    assert rows[0] == rows[1]
    assert model_of(tmp_path / "engine") == model_of(tmp_path / "loop")


def test_the_loader_draws_as_the_batches(tmp_path):
    for train in (plain, by_loader):
        run(tmp_path / train.__name__, train, **{"local.epochs": 2})
    assert model_of(tmp_path / "plain") == model_of(tmp_path / "by_loader")


def test_numbers_are_columns_and_a_training_loss_is_the_runs(tmp_path):
    def telling(client: raysim.Client) -> dict[str, Any]:
        losses = [take(client, client.optimizer(), *batch) for batch in client.batches()]
        return {"train_loss": losses[0], "steps_taken": np.int64(len(losses))}

    rows = run(tmp_path / "run", telling, fraction=1.0).metrics.to_pylist()
    sizes = np.array(UNEQUAL)
    assert rows[0]["steps_taken"] == np.average(-(-sizes // 8), weights=sizes)
    clients = pq.read_table(tmp_path / "run" / "clients.parquet").to_pylist()[: len(sizes)]
    assert [row["steps"] for row in clients] == [row["train@steps_taken"] for row in clients]
    first = np.average([row["train_loss"] for row in clients], weights=sizes)
    assert rows[0]["train_loss"] == pytest.approx(first)
    none = run(tmp_path / "none", plain).metrics.to_pylist()
    assert [row["train_loss"] for row in none] == [None] * 3
    assert none[0]["bytes_up"] == none[0]["bytes_down"] + 4 * none[0]["clients"]


@pytest.mark.usefixtures("resident_actors")
class TestCounting(LoopContract):
    loop = f"{HERE}:counting"


def entropy(client: raysim.Client) -> None:
    client.model.head.bias.data += np.random.default_rng().normal()


def remembering(client: raysim.Client) -> None:
    SEEN.append(client.id)
    client.model.head.bias.data += len(SEEN)


SEEN: list[int] = []


@pytest.mark.parametrize("loop", [entropy, remembering])
def test_the_contract_finds_what_no_seed_keys(loop, tmp_path):
    class Tests(LoopContract):
        pass

    Tests.loop = f"{HERE}:{loop.__name__}"
    with pytest.raises(AssertionError, match=r"system's entropy, .* or keeps values outside"):
        Tests().test_two_runs_have_the_same_bits_and_figures(tmp_path)


def test_a_client_keeps_what_it_puts_into_its_state(tmp_path):
    seen: dict[int, list[tuple[Any, ...]]] = {}

    def keeping(client: raysim.Client) -> None:
        own = seen.setdefault(client.id, [])
        own.append((client.round, {**client.state}))
        if client.round == 3:
            client.state = {}
        else:
            client.state |= {"n": client.round, "half": 0.5, "yes": True, "t": torch.ones(2)}

    run(tmp_path, keeping, rounds=4, fraction=1.0)
    for rounds in seen.values():
        found = dict(rounds[-4:])
        assert found[1] == {} and found[4] == {}
        tensor = found[3].pop("t")
        assert tensor.tolist() == [1, 1]
        assert found[3] == {"n": 2, "half": 0.5, "yes": True}
        assert type(found[3]["n"]) is int and type(found[3]["yes"]) is bool


def test_global_generators_are_keyed_by_client_and_round_and_restored(tmp_path):
    drawn: dict[tuple[int, int], tuple[float, ...]] = {}

    def drawing(client: raysim.Client) -> None:
        numbers = (torch.rand(()).item(), np.random.rand(), random.random())
        drawn[client.round, client.id] = numbers

    def state() -> tuple[Any, ...]:
        return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()

    before = state()
    run(tmp_path / "a", drawing)
    assert state() == before
    first = {**drawn}
    assert all(len({*column}) == len(first) for column in zip(*first.values(), strict=True))
    np.random.seed(5)
    run(tmp_path / "b", drawing)
    assert drawn == first
    run(tmp_path / "c", drawing, seed=1)
    assert drawn.values() != first.values()


def test_the_module_is_as_before_for_the_next_client(tmp_path):
    modules = []

    def leaving(client: raysim.Client) -> None:
        model = client.model
        found = [*model.modules()]
        modules.append(
            ([len(m._forward_hooks) for m in found], model.training, hasattr(model, "n"))
        )
        assert all(p.grad is None and p.requires_grad for p in model.parameters())
        model.n = 1
        model.eval()
        model.head.register_forward_hook(lambda *given: None)
        model.head.weight.requires_grad_(False)
        model(torch.ones(2, 12)).sum().backward()
        model.hidden[0].weight.data = model.hidden[0].weight.data + 1.0
        model.head.bias = nn.Parameter(model.head.bias + 2.0)

    result = run(tmp_path, leaving, rounds=1, fraction=1.0)
    assert len(modules) >= len(UNEQUAL)
    assert all(found == modules[0] for found in modules)
    first = make_task(UNEQUAL).model
    with torch.random.fork_rng():
        params = {**result.params}
    settings = make_settings(tmp_path / "start", rounds=1, **{"local.lr": 1e-30})
    start = raysim.run(settings, make_task(UNEQUAL)).params
    assert first is not None
    torch.testing.assert_close(params["hidden.0.weight"], start["hidden.0.weight"] + 1.0)
    torch.testing.assert_close(params["head.bias"], start["head.bias"] + 2.0)


class Holding(SmallNet):
    """A network that holds containers, and has a square weight."""

    def __init__(self) -> None:
        super().__init__()
        self.square = nn.Linear(4, 4)
        self.log: list[int] = []
        self.nested = {"a": {"b": {1}}}


LEFT: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "hook of a gradient": (
        lambda net: net.head.weight.register_hook(lambda gradient: gradient * 2),
        lambda net: len(net.head.weight._backward_hooks or ()),
    ),
    "attribute of a parameter": (
        lambda net: setattr(net.head.weight, "seen", 1),
        lambda net: hasattr(net.head.weight, "seen"),
    ),
    "list": (lambda net: net.log.append(1), lambda net: len(net.log)),
    "nested": (lambda net: net.nested["a"]["b"].add(2), lambda net: len(net.nested["a"]["b"])),
    "strides": (
        lambda net: setattr(net.square.weight, "data", net.square.weight.data.t()),
        lambda net: net.square.weight.stride(),
    ),
    "grad mode": (lambda net: torch.set_grad_enabled(False), lambda net: torch.is_grad_enabled()),
    "default dtype": (
        lambda net: torch.set_default_dtype(torch.float64),
        lambda net: torch.get_default_dtype(),
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_nothing_that_a_client_leaves_reaches_the_next(case, tmp_path):
    leave, look = LEFT[case]
    seen = []

    def leaving(client: raysim.Client) -> None:
        seen.append((look(client.model), client.model.square.weight.tolist()))
        leave(client.model)

    task = make_task(UNEQUAL)
    task = raysim.Task(Holding, task.clients, task.test, train=leaving)
    try:
        result = raysim.run(make_settings(tmp_path, rounds=1, fraction=1.0), task)
    finally:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
    assert len(seen) > len(UNEQUAL)  # the rehearsal, too
    assert all(each == seen[0] for each in seen)
    start = torch.tensor(seen[0][1])
    expected = start.t() if case == "strides" else start
    assert torch.equal(result.params["square.weight"], expected)


class Frozen(SmallNet):
    """A network with a frozen weight, and a hook of a gradient of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden[0].weight.requires_grad_(False)
        self.head.weight.register_hook(lambda gradient: gradient * 0)


def test_a_frozen_parameter_stays_as_it_is(tmp_path):
    def all_given(client: raysim.Client) -> None:
        optimizer = client.optimizer(client.model.parameters())
        for x, y in client.batches():
            take(client, optimizer, x, y)

    task = make_task(UNEQUAL)
    for decoupled, optimizer in enumerate(("sgd", "adamw")):
        models = []
        for train in (None, all_given):
            own = raysim.Task(Frozen, task.clients, task.test, train=train)
            out = tmp_path / f"{decoupled}{bool(train)}"
            settings = {"local.weight_decay": 0.1, "local.optimizer": optimizer}
            raysim.run(make_settings(out, **settings), own)
            models.append(model_of(out))
        assert models[0] == models[1]


@pytest.mark.parametrize("settings", [{}, {"method.name": "fedbabu"}])
def test_a_loop_that_changes_what_is_not_trained_is_refused(settings, tmp_path):
    def poking(client: raysim.Client) -> None:
        name = "head.weight" if settings else "hidden.0.weight"
        client.model.get_parameter(name).data += 1

    task = make_task(UNEQUAL)
    own = raysim.Task(SmallNet if settings else Frozen, task.clients, task.test, train=poking)
    line = r"parameter head.weight, which is not trained|frozen tensor hidden.0.weight was changed"
    with pytest.raises(raysim.SettingsError, match=line):
        raysim.run(make_settings(tmp_path / "run", **settings), own)


def test_each_iteration_of_a_loader_has_an_epoch_of_its_own(tmp_path):
    drawn = []

    def pairs(client: raysim.Client) -> None:
        loader = client.loader()
        both = zip(loader, loader, strict=True)
        drawn.append([torch.cat([x for x, _ in each]) for each in zip(*both, strict=True)])

    run(tmp_path, pairs, rounds=1)
    for first, second in drawn:
        assert len(first) <= 8 or not torch.equal(first, second)
        assert torch.equal(first.sort(0).values, second.sort(0).values)


def raising(client: raysim.Client) -> None:
    raise ValueError("no such thing")


def ending(client: raysim.Client) -> None:
    raise SystemExit(3)


def renaming(client: raysim.Client) -> None:
    client.model.other = nn.Linear(2, 2)


def replacing(client: raysim.Client) -> None:
    client.model.head = nn.Linear(7, 3)


def halving(client: raysim.Client) -> None:
    client.model.half()


def breaking(client: raysim.Client) -> None:
    client.model.head.weight.data.fill_(float("nan"))


def returning_text(client: raysim.Client) -> Any:
    return {"loss": "low"}


def returning_list(client: raysim.Client) -> Any:
    return [1.0]


def returning_nan(client: raysim.Client) -> Any:
    return {"score": float("nan")}


def returning_steps(client: raysim.Client) -> Any:
    return {"seconds": 1.0}


def returning_inf(client: raysim.Client) -> Any:
    return {"train_loss": float("inf")}


def returning_owner(client: raysim.Client) -> Any:
    return {"a@b": 1.0}


def returning_lines(client: raysim.Client) -> Any:
    return {"a\nb": 1.0}


def returning_long(client: raysim.Client) -> Any:
    return {"x" * 300: 1.0}


def decaying_group(client: raysim.Client) -> Any:
    client.optimizer([{"params": client.model.parameters(), "weight_decay": 5.0}])


def naming(client: raysim.Client) -> Any:
    client.optimizer(client.model.named_parameters())


def parametrizing(client: raysim.Client) -> Any:
    nn.utils.parametrizations.weight_norm(client.model.head)


def keeping_array(client: raysim.Client) -> None:
    client.state["w"] = np.ones(3)


def keeping_optimizer(client: raysim.Client) -> None:
    client.state["opt"] = client.optimizer()


FAULTS: Mapping[Loop, str] = {
    raising: r"ValueError: no such thing \(test_own_loop.py, line \d+\) \(client \d, in a re",
    ending: r"the loop of local.train ends the process: SystemExit\(3\)",
    renaming: "changes the model's tensors: other.bias is float32.2., was missing; a loop may",
    replacing: r"changes the model's tensors: head.weight is float32\[3, 7\], was float32\[3, 16\]",
    halving: r"changes the model's tensors: head.bias is float16\[3\], was float32\[3\]",
    breaking: "its update is not finite .*head.weight",
    returning_text: "returns 'loss' 'low', which is no number",
    returning_list: r"returns \[1.0\]; must return numbers by name, or None",
    returning_nan: "not finite .*score",
    returning_steps: "Task.train: the number 'seconds' has the name of a column of the engine",
    returning_inf: "returns 'train_loss' inf, which is not finite",
    returning_owner: "returns the name 'a@b'; a name must have printable characters but @, and 100",
    returning_lines: "returns the name 'a.{1,2}nb'; a name must",
    returning_long: "returns the name 'xxx.*; a name must",
    decaying_group: "client.optimizer: a group may have params and lr, not weight_decay; local",
    naming: "client.optimizer: takes parameters, not pairs of names and parameters",
    parametrizing: "changes the model's tensors: head.parametrizations.weight.original0 is float",
    keeping_array: "keeps client.state.'w'., array.* which is no number; torch.from_numpy makes",
    keeping_optimizer: "keeps client.state.'opt'., LocalOptimizer .* which is no number",
}


@pytest.mark.parametrize("loop", FAULTS, ids=lambda loop: loop.__name__)
def test_a_faulty_loop_is_refused_in_one_line_before_the_run(loop, tmp_path):
    with pytest.raises(raysim.RaysimError, match=FAULTS[loop]) as refused:
        run(tmp_path / "run", loop)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_client_that_fails_leaves_the_module_whole(tmp_path):
    def sometimes(client: raysim.Client) -> None:
        plain(client)
        if client.id == 2 and client.round == 2:
            halving(client)
            replacing(client)

    with pytest.raises(raysim.RunError, match=r"client 2: failed twice in round 2: the loop of"):
        run(tmp_path / "stop", sometimes, fraction=1.0)
    dropping = {"fraction": 1.0, "on_client_error": "drop"}
    assert run(tmp_path / "drop", sometimes, **dropping).metrics.to_pylist()[1]["clients"] == 5


REFUSED: Mapping[str, dict[str, Any]] = {
    r"method.name=scaffold: does not go with Task.train, which takes its own steps; write": {
        "method.name": "scaffold"
    },
    "method.name=fedprox: does not go with Task.train": {"method.name": "fedprox"},
    "engine.vectorize=3: does not go with Task.train, which trains one client at a time": {
        "engine.vectorize": 3
    },
    "channel.masks: does not go with Task.train, which returns the number 'last_loss' of single": {
        "channel.masks": {}
    },
    "channel.gaussian: does not go with Task.train, which returns the number 'last_loss', which": {
        **{"channel": {"gaussian": {"noise": 1.0}}, "aggregation.weighting": "fixed"},
        **{"selection.name": "poisson", "weighting": "uniform"},
    },
    "local.label_smoothing=0.1: does not go with Task.train, whose loss and steps are its own": {
        "local.label_smoothing": 0.1
    },
    "local.temperature=2.0: does not go with Task.train": {"local.temperature": 2.0},
    "local.train=.*: the task has a loop, too; leave out Task.train": {"local.train": LOOP},
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_does_not_go_with_a_loop_is_refused_in_one_line(line, tmp_path):
    with pytest.raises(raysim.SettingsError, match=line):
        run(tmp_path / "run", plain, **REFUSED[line])
    assert not (tmp_path / "run").exists()


def test_a_loop_keeps_nothing_where_rounds_overlap(tmp_path):
    with pytest.raises(raysim.SettingsError, match=r"Task.train: does not go with method.name=f"):
        run(tmp_path, counting, **{"method.name": "fedbuff"})


def test_a_loop_that_begins_later_to_keep_is_refused_where_rounds_overlap(tmp_path):
    def late(client: raysim.Client) -> None:
        if client.round > 1:
            client.state["n"] = 1

    line = r"Task.train: does not go with method.name=fedbuff, whose rounds overlap"
    with pytest.raises(raysim.SettingsError, match=line):
        run(tmp_path, late, **{"method.name": "fedbuff"})


def test_the_server_trains_on_its_root_samples_by_its_name(tmp_path):
    who = []

    def noting(client: raysim.Client) -> dict[str, Any]:
        who.append((client.id, client.name, client.samples))
        return plain(client)

    run(tmp_path, noting, rounds=1, **{"aggregation.name": "fltrust", "aggregation.root": 10})
    assert who[-1] == (-1, "server", 10)
    assert all(name == (str(number) if number >= 0 else "server") for number, name, _ in who)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("no_such_module:train", "cannot be imported: ModuleNotFoundError"),
        (f"{HERE}:no_such", "cannot be imported: AttributeError"),
        ("my_loop.py", "must name a function, such as my_loop:train"),
        (f"{HERE}:HERE", "must be a function of .client."),
        (f"{HERE}:take", "must be a function of .client."),
    ],
)
def test_a_setting_that_names_no_loop_is_refused(value, line, tmp_path):
    with pytest.raises(raysim.SettingsError, match=f"^local.train={value}: {line}"):
        make_settings(tmp_path, **{"local.train": value})


def test_the_code_of_a_loop_is_a_part_of_the_runs_identity(tmp_path):
    def other(client: raysim.Client) -> dict[str, Any]:
        return {**plain(client), "more": 1.0}

    class Stop(raysim.Listener):
        def round_done(self, row: Mapping[str, Any]) -> None:
            if row["round"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path), task_of(plain), Stop())
    for changed in (task_of(other), make_task(UNEQUAL)):
        with pytest.raises(raysim.RunError, match="code of the task's functions was"):
            raysim.resume(tmp_path, changed)
    raysim.resume(tmp_path, task_of(plain))


def test_the_clock_charges_epochs_times_batches_times_the_cost(tmp_path):
    clock = {"clock.name": "devices", "rounds": 1, "fraction": 1.0, "clock.spread": 0.0}
    seconds = {}
    for cost in (1.0, 2.0, 4.0):
        row = run(tmp_path / str(cost), plain, **clock, **{"local.cost": cost}).metrics.to_pylist()[
            0
        ]
        seconds[cost] = row["virtual_seconds"]
    engine = raysim.run(make_settings(tmp_path / "engine", **clock), make_task(UNEQUAL))
    assert seconds[1.0] == pytest.approx(engine.metrics.to_pylist()[0]["virtual_seconds"], rel=1e-6)
    assert seconds[4.0] - seconds[2.0] == pytest.approx(2 * (seconds[2.0] - seconds[1.0]), abs=3e-6)
    assert seconds[2.0] > seconds[1.0]


def test_an_optimizer_takes_groups_and_schedules_as_torchs(tmp_path):
    seen = []

    def halves(client: raysim.Client) -> None:
        head, rest = client.model.head.parameters(), client.model.hidden.parameters()
        optimizer = client.optimizer([{"params": head, "lr": 0.0}, {"params": rest}])
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        start = {n: p.detach().clone() for n, p in client.model.named_parameters()}
        x, y = next(client.batches())
        F.cross_entropy(client.model(x), y).backward()
        optimizer.step()
        schedule.step()
        moved = {n for n, p in client.model.named_parameters() if not torch.equal(p, start[n])}
        seen.append((moved, [group["lr"] for group in optimizer.param_groups]))

    run(tmp_path, halves, rounds=1)
    assert seen[-1] == ({"hidden.0.weight", "hidden.0.bias"}, [0.0, 0.05])


def test_arrays_are_copies_of_all_samples(tmp_path):
    def spoiling(client: raysim.Client) -> None:
        x, y = client.arrays()
        assert x.shape == (client.samples, 12) and y.dtype == np.int64
        x[:], y[:] = np.nan, 9
        for inputs, targets in client.batches():
            inputs.zero_()
            targets.zero_()
        plain(client)

    for train in (plain, spoiling):
        run(tmp_path / train.__name__, train, **{"local.batch_size": "full"})
    assert model_of(tmp_path / "plain") == model_of(tmp_path / "spoiling")


def test_a_tasks_own_evaluation_is_a_column(tmp_path):
    given = []

    def evaluate(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        given.append((len(x), model.training, torch.rand(()).item(), np.random.rand()))
        with torch.no_grad():
            correct = model(x).argmax(1) == y
        x.zero_()
        return {"share": correct.double().mean(), "draw": given[-1][2]}

    task = make_task(EQUAL)
    task = raysim.Task(task.model, task.clients, task.test, evaluate=evaluate)
    settings = {"evaluation.every": 2, "rounds": 4}
    rows = raysim.run(make_settings(tmp_path / "a", **settings), task).metrics.to_pylist()
    assert [row["share"] for row in rows] == [row["test_accuracy"] for row in rows]
    assert rows[0]["share"] is None and rows[1]["share"] > 0.4
    assert given[-1][:2] == (300, False)
    again = raysim.run(make_settings(tmp_path / "b", **settings), task).metrics.to_pylist()
    assert [row["draw"] for row in again] == [row["draw"] for row in rows]
    assert rows[1]["draw"] != rows[3]["draw"]


@pytest.mark.parametrize(
    ("evaluate", "line"),
    [
        (lambda model, x, y: {"test_loss": 1.0}, "the number 'test_loss' has the name of a column"),
        (lambda model, x, y: 1 / 0, r"failed: ZeroDivisionError: .* \(test_own_loop.py, line"),
        (lambda model, x, y: 1.0, "returns 1.0; must return numbers by name"),
        (lambda model: {}, r"must be a function of \(model, x, y\)"),
    ],
)
def test_a_faulty_evaluation_is_refused_in_one_line(evaluate, line, tmp_path):
    task = make_task(EQUAL)
    task = raysim.Task(task.model, task.clients, task.test, evaluate=evaluate)
    with pytest.raises(raysim.RaysimError, match=f"^Task.evaluate:? {line}"):
        raysim.run(make_settings(tmp_path / "run"), task)
    with pytest.raises(raysim.RaysimError, match=r"Task.evaluate: needs Task.test"):
        raysim.run(
            make_settings(tmp_path / "run"),
            raysim.Task(task.model, task.clients, evaluate=evaluate),
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "settings", "line"),
    [
        ("mine", {}, "Task.evaluate: the number 'mine' has the name of another column"),
        ("test_odd", {}, "Task.train: the number 'test_odd' has the name of another column"),
        ("q_max", {"method.name": f"{HERE}:Telling"}, "the metric 'q_max' has the name of another"),
    ],
)
def test_no_number_takes_the_name_of_another(name, settings, line, tmp_path):
    def losses(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, y, reduction="none")

    task = make_task(EQUAL)
    scoring = raysim.Scoring(losses, {"odd": lambda logits, y: 0.5})
    task = raysim.Task(
        *(task.model, task.clients, task.test),
        scoring=scoring,
        train=lambda client: {name: 1.0},
        evaluate=lambda model, x, y: {"mine": 7.0},
    )
    with pytest.raises(raysim.SettingsError, match=line):
        raysim.run(make_settings(tmp_path / "run", **settings), task)


class Telling(FedAvg):
    """FedAvg with a number of its own."""

    columns = (raysim.Column("q_max"),)

    def metrics(self, state: Any) -> dict[str, float]:
        return {"q_max": 1.0}


def test_auto_stacks_are_none(tmp_path):
    notes = Notes()
    settings = make_settings(tmp_path, rounds=1, **{"engine.vectorize": "auto"})
    raysim.run(settings, task_of(plain, SIZES), notes)
    assert not notes.notes
