"""Local training equals torch.optim: one client at a time, as recorded steps, and stacked."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import raysim
from raysim.api.rules import Batching, LocalSteps, Rules, samples_of
from raysim.api.scoring import for_training
from raysim.api.selection import History
from raysim.driver.asynchronous.times import equal_devices
from raysim.driver.rounds.selecting import sampling_of
from raysim.errors import RunError, SettingsError
from raysim.methods.fedavg import FedAvg
from raysim.optimizers import OPTIMIZERS as REGISTERED
from raysim.testing.tasks import samples
from raysim.training import recorded_steps
from raysim.training.job import ClientJob, batch_bounds, iterate_epochs
from raysim.training.stacked.batches import stacked_batches
from raysim.training.update import Update
from tests.tasks import EQUAL, in_turn, make_settings, make_task
from tests.training.torch_reference import BATCH, SIZES, Reference, batches, cohorts, model, task

ROUNDS, LR = 3, 0.02
OPTIMIZERS = {
    "sgd": ({"local.momentum": 0.8, "local.nesterov": True}, torch.optim.SGD),
    "adam": ({"local.betas": [0.8, 0.95], "local.eps": 1e-6}, torch.optim.Adam),
    "adamw": ({"local.weight_decay": 0.1}, torch.optim.AdamW),
    "adagrad": ({"local.weight_decay": 0.03}, torch.optim.Adagrad),
    "rmsprop": ({"local.alpha": 0.9, "local.momentum": 0.5}, torch.optim.RMSprop),
}
MODES = {
    "one at a time": {},
    "recorded": {},
    "stacked": {"engine.vectorize": 3},
}


def reference(name, **options):
    overrides, make = OPTIMIZERS[name]
    own = {key.removeprefix("local."): value for key, value in overrides.items()}
    decay = own.pop("weight_decay", 0.0)
    return partial(make, weight_decay=decay, **own), overrides


def run(folder, rounds=ROUNDS, **overrides):
    settings = {"rounds": rounds, "fraction": 0.75, "local.batch_size": BATCH, "local.lr": LR}
    settings["local.epochs"] = 2
    return raysim.run(make_settings(folder, **settings | overrides), task())


def assert_equal(params, expected):
    assert params.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (params[name] - tensor).abs().max() < 1e-6, name


@pytest.fixture
def mode(request, monkeypatch):
    """Settings of a way to train; recorded steps are scripts from the third step on."""
    counted = [0]
    if request.param == "recorded":
        find = recorded_steps.StepsOfKind.find

        def counting(*given):
            script = find(*given)
            counted[0] += script is not None
            return script

        monkeypatch.setattr(recorded_steps, "STEPS_BEFORE", 2)
        monkeypatch.setattr(recorded_steps.StepsOfKind, "find", counting)
    yield MODES[request.param]
    assert (counted[0] > 50) == (request.param == "recorded")


@pytest.mark.parametrize("mode", MODES, indirect=True)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_is_that_of_torch(tmp_path, name, mode):
    make, overrides = reference(name)
    given = {"local.optimizer": name, "local.clip_norm": 0.5, **overrides, **mode}
    result = run(tmp_path / "run", **given)
    expected = Reference(make, [LR] * ROUNDS, clip_norm=0.5).run(cohorts(result))
    assert_equal(result.params, expected)


@pytest.mark.parametrize(
    ("name", "mode"), in_turn(["sgd", "adamw", "rmsprop"], MODES, 1), indirect=["mode"]
)
def test_a_kept_optimizer_goes_on_in_the_next_round_and_when_resumed(tmp_path, name, mode):
    make, overrides = reference(name)
    given = {"local.optimizer": name, "local.keep": True, **overrides, **mode}
    run(tmp_path / "run", rounds=2, **given)
    resumed = raysim.resume(tmp_path / "run", task(), overrides={"rounds": ROUNDS})
    expected = Reference(make, [LR] * ROUNDS, keep=True).run(cohorts(resumed))
    assert_equal(resumed.params, expected)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_complex_parameters_are_pairs_of_reals(name):
    make, overrides = reference(name)
    generator = torch.Generator().manual_seed(0)
    drawn = [
        [torch.randn(shape, generator=generator, dtype=dtype) for _ in range(21)]
        for shape, dtype in (((3, 2), torch.complex128), ((4,), torch.float64))
    ]
    ours, theirs = ([first.clone().requires_grad_() for first, *_ in drawn] for _ in range(2))
    optimizer = make(theirs, lr=LR)
    local = raysim.load_config("mnist-fedavg", {"local.optimizer": name, **overrides}).local
    update, names = Update(local, local.build_optimizer(), LR), ["pairs", "reals"]
    params = [param.detach() for param in ours]
    update.start(params, names, {})
    for step in range(1, 21):
        gradients = [each[step] for each in drawn]
        for param, gradient in zip(theirs, gradients, strict=True):
            param.grad = gradient.clone()
        optimizer.step()
        directions = update.directions(update.add_weight_decay(gradients, params))
        update.move(params, update.add_decoupled_decay(directions, params))
    for own, param in zip(params, theirs, strict=True):
        assert (own - param).abs().max() < 1e-6


SCHEDULES = {
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=7, eta_min=0.002),
    "linear": lambda o: torch.optim.lr_scheduler.LinearLR(
        o, start_factor=1.0, end_factor=0.1, total_iters=7
    ),
    "constant": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, gamma=0.9),
}


def rates_of_torch(schedule, rounds):
    """Learning rates by torch's schedulers, behind a warm-up of 3 rounds."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=LR)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1 / 4, total_iters=3)
    behind = SCHEDULES[schedule](optimizer)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, behind], [3])
    rates = []
    for _ in range(rounds):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        with warnings.catch_warnings():  # of torch, about its own call in SequentialLR
            warnings.simplefilter("ignore", UserWarning)
            scheduler.step()
    return rates


@pytest.mark.parametrize(("schedule", "mode"), in_turn(SCHEDULES, MODES), indirect=["mode"])
def test_a_schedule_is_that_of_torch(tmp_path, schedule, mode):
    own = {"local.lr_decay": 0.9} if schedule == "constant" else {"local.lr_min": 0.002}
    given = {"local.schedule": schedule, "local.warmup_rounds": 3, **own, **mode}
    given |= {"local.optimizer": "adam", "local.steps": 5, "local.epochs": 1}
    result = run(tmp_path / "run", rounds=10, **given)
    rates = rates_of_torch(schedule, 10)
    assert result.metrics["lr"].to_pylist() == pytest.approx(rates, rel=1e-12)
    assert len({*rates}) == 10
    reference = Reference(torch.optim.Adam, rates, steps=5)
    assert_equal(result.params, reference.run(cohorts(result)))


@pytest.mark.parametrize(
    ("factor", "steps"), [(2, 14), (0.5, 4), (0.01, 1), (0.0, 1), (1e-12, 1), (1 / 7 * 3, 3)]
)
def test_steps_are_multiplied_as_epochs_are(factor, steps):
    assert factor * LocalSteps(7) == LocalSteps(7) * factor == LocalSteps(steps)
    assert not factor * LocalSteps(0)


class Thorough(FedAvg):
    """Trains twice as long as `local` says."""

    def training_pass(self, now, state):
        return replace(super().training_pass(now, state), epochs=2 * now.epochs)


@pytest.mark.parametrize("work", ["epochs", "steps"])
def test_a_method_may_multiply_the_work_of_a_round(tmp_path, work):
    method = {"method.name": f"{__name__}:Thorough", f"local.{work}": 3}
    twice = run(tmp_path / "twice", rounds=2, **{"local.epochs": 1} | method)
    plain = run(tmp_path / "plain", rounds=2, **{"local.epochs": 1, f"local.{work}": 6})
    assert all(torch.equal(twice.params[n], t) for n, t in plain.params.items())


@pytest.mark.parametrize(("steps", "mode"), in_turn([5, 17, 26], MODES), indirect=["mode"])
def test_steps_in_place_of_epochs(tmp_path, steps, mode):
    given = {"local.epochs": 1, "local.steps": steps, "local.optimizer": "adam", **mode}
    result = run(tmp_path / "run", rounds=6 if steps == 5 else ROUNDS, **given)
    rows = pq.read_table(result.run_dir / "clients.parquet")
    assert {*rows["steps"].to_pylist()} == {steps}
    expected = Reference(torch.optim.Adam, [LR] * 6, steps=steps).run(cohorts(result))
    assert_equal(result.params, expected)


DEVICES = {"clock.name": "devices", "clock.dropout": 0.1, "fraction": 0.5}
ALIKE = {
    "fedavg": {},
    "fednova stacked": {"method.name": "fednova", "engine.vectorize": 3},
    "scaffold in virtual time": {"method.name": "scaffold", **DEVICES},
    "fsvrg": {"method.name": "fsvrg"},
    "ditto deployed": {"method.name": "ditto", "evaluation.clients": False},
    "oort": {"selection.name": "oort", **DEVICES},
    "late clients": {**DEVICES, "clock.policy": "deadline", "clock.deadline": 0.5},
    "overlapping": {"method.name": "fedbuff", "method.buffer": 2, "method.concurrency": 3},
}


@pytest.mark.parametrize("case", ALIKE)
def test_steps_of_whole_epochs_are_these_epochs(tmp_path, case):
    """Ten steps on batches of 8 are two epochs of 40 samples, whatever rides on the pass."""
    epochs, steps = (
        raysim.run(make_settings(tmp_path / name, **ALIKE[case], **work), make_task(EQUAL))
        for name, work in (
            ("epochs", {"local.epochs": 2}),
            ("steps", {"local.epochs": 1, "local.steps": 10}),
        )
    )
    same = [torch.equal(epochs.params[n], t) for n, t in steps.params.items()]
    assert all(same) or "stacked" in case
    assert_equal(steps.params, epochs.params)
    for name in {"virtual_seconds", "clients", "train_loss"} & {*epochs.metrics.column_names}:
        before, after = (each.metrics[name].to_pylist() for each in (epochs, steps))
        assert after == pytest.approx(before, rel=1e-9, nan_ok=True), name


def test_steps_are_counted_in_samples_by_hand(tmp_path):
    """Seven steps on batches of 8 of 17, 8 and 1 samples: 2 x 17 + 8, 7 x 8 and 7 x 1."""
    sizes, expected = np.array([17, 8, 1]), [42, 56, 7]
    assert samples_of(LocalSteps(7), sizes, Batching(8)).tolist() == expected
    assert samples_of(LocalSteps(7), sizes, Batching("full")).tolist() == [7 * 17, 7 * 8, 7]
    assert samples_of(3, sizes, Batching(8)).tolist() == [51, 24, 3]
    settings = make_settings(tmp_path, **{"local.epochs": 1, "local.steps": 7})
    (clock,) = equal_devices(settings, sizes, 1)
    assert [clock.fly(client, 5)[0] - 5 for client in range(3)] == expected
    before = SimpleNamespace(number=0, kept=lambda owner: {}, history=History.empty(3))
    assert sampling_of(settings, before, sizes, None).seconds([2, 0]).tolist() == [7, 42]


def test_stacked_steps_see_the_inputs_of_each_epoch():
    """Inputs are altered anew in each epoch, which ends at another step for each client."""

    def job(client, n):
        x, y = map(torch.as_tensor, samples(n, client))
        return ClientJob(
            rules=Rules(),
            epochs=LocalSteps(7),
            lr=LR,
            trainable=None,
            data=raysim.Batch(x, y),
            broadcast={},
            state={},
            personal={},
            augment=lambda x, generator: x + torch.randn(x.shape, generator=generator),
            batches=partial(np.random.default_rng, client),
            torch_seed=client,
            generator=None,
        )

    sizes = (17, 5, 9)
    seen = [[], [], []]
    for batch, counts, _ in stacked_batches([*map(job, range(3), sizes)], Batching(8), False):
        for k, count in enumerate(counts):
            seen[k].append((batch["x"][k, :count], batch["y"][k, :count]))
    for k, n in enumerate(sizes):
        alone, bounds = job(k, n), batch_bounds(n, Batching(8), False)
        expected = [
            (x[order[start:stop]], alone.data.y[order[start:stop]])
            for x, order in iterate_epochs(alone, bounds)
            for start, stop in bounds
        ][:7]
        for (x, y), (own_x, own_y) in zip(seen[k], expected, strict=True):
            assert torch.equal(x, own_x) and torch.equal(y, own_y)


def test_late_clients_take_the_steps_that_the_deadline_allows(tmp_path):
    """Of seven steps, where an epoch has 5, a client takes any number from 1 on."""
    table = tmp_path / "devices.csv"
    speeds = [f"{client},{30_000 * (client + 1)}" for client in range(len(EQUAL))]
    table.write_text("\n".join(["client,speed", *speeds]))
    given = {"clock.name": "devices", "clock.table": str(table), "clock.policy": "partial"}
    work = {"local.epochs": 1, "local.steps": 7, "fraction": 1.0, "clock.deadline": 1.0}
    result = raysim.run(make_settings(tmp_path / "run", **given, **work), make_task(EQUAL))
    rows = pq.read_table(result.run_dir / "clients.parquet").to_pylist()
    taken = {row["client"]: row["steps"] for row in rows}
    assert [*taken.values()] == sorted(taken.values()) and taken[5] == 7
    assert 1 <= min(taken.values()) < 5


LOSSES = [
    *[(0.2, None), (0.0, [0.5, 2.0, 1.0]), (0.1, [3.0, 0.1, 0.25])],
    *[(0.1, "balanced"), (0.2, [0.5, 2.0, 1.0])],
]


@pytest.mark.parametrize(("case", "mode"), in_turn(LOSSES, MODES), indirect=["mode"])
def test_smoothing_and_class_weights_are_those_of_torch(tmp_path, case, mode):
    smoothing, weights = case
    given = {"local.label_smoothing": smoothing, "local.class_weights": weights, **mode}
    result = run(tmp_path / "run", **given)
    if weights == "balanced":
        labels = np.concatenate([samples(n, client)[1] for client, n in enumerate(SIZES)])
        weights = len(labels) / (3 * np.bincount(labels))
        assert weights.max() - weights.min() > 0.1
    own = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    loss = nn.CrossEntropyLoss(weight=own, label_smoothing=smoothing)
    reference = Reference(torch.optim.SGD, [LR] * ROUNDS, loss=loss)
    assert_equal(result.params, reference.run(cohorts(result)))
    assert_losses(result, loss)


@pytest.mark.usefixtures("resident_actors")
def test_balanced_weights_are_those_of_all_training_labels(tmp_path):
    """Of those held out, too; label 1 has no samples, and 3 and 4 are outputs without labels."""
    sizes, spread = (8, 4, 6), {"evaluation.holdout": 0.25, "local.label_smoothing": 0.1}
    clients = [samples(n, key) for key, n in enumerate(sizes)]
    labels = ([0, 0, 0, 0, 0, 0, 2, 2], [2, 0, 2, 2], [0, 2, 0, 0, 2, 2])  # 10 of 0, 8 of 2
    own = raysim.Task(
        lambda: nn.Linear(12, 5),
        [(x, np.array(y)) for (x, _), y in zip(clients, labels, strict=True)],
        samples(20, 9),
    )
    given = [18 / (2 * 10), 0.0, 18 / (2 * 8), 0.0, 0.0]
    one = {"local.class_weights": given, **spread}
    expected = raysim.run(make_settings(tmp_path / "listed", **one), own).params
    for name, engine in {
        "inline": {},
        "ray": {"engine.backend": "ray", "engine.actors": 2},
    }.items():
        balanced = {"local.class_weights": "balanced", **spread, **engine}
        params = raysim.run(make_settings(tmp_path / name, **balanced), own).params
        assert all(torch.equal(params[n], tensor) for n, tensor in expected.items())


def assert_losses(result, loss):
    """Of a client's first step: the plain loss is reported, the other one is the objective."""
    row = pq.read_table(result.run_dir / "clients.parquet").to_pylist()[0]
    assert row["round"] == 1
    client, local = row["client"], model()
    x, y = map(torch.as_tensor, samples(SIZES[client], client))
    plain, objective, optimizer = [], [], torch.optim.SGD(local.parameters(), lr=LR)
    sizes = []
    for rows in batches(0, client, 2):
        logits, targets = local(x[rows].double()), y[rows]
        sizes.append(len(rows))
        plain.append(nn.functional.cross_entropy(logits, targets).item())
        value = loss(logits, targets)
        objective.append(value.item())
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    assert row["train_loss"] == pytest.approx(np.average(plain, weights=sizes), abs=1e-9)
    assert row["objective"] == pytest.approx(np.average(objective, weights=sizes), abs=1e-9)
    assert abs(row["objective"] - row["train_loss"]) > 1e-4


def test_one_logit_is_smoothed_and_weighted_as_two():
    logits, labels = torch.tensor([[0.3], [-2.0], [1.1]]), torch.tensor([1, 0, 0])
    both = torch.cat([torch.zeros(3, 1), logits], dim=1)
    expected = nn.functional.cross_entropy(
        both, labels, torch.tensor([0.5, 2.0]), label_smoothing=0.3
    )
    scoring = for_training(raysim.CLASSIFICATION, 0.3, (0.5, 2.0))
    padded = raysim.Batch(logits, labels, torch.ones(3), scoring)
    for batch in (padded, padded._replace(weights=None)):
        assert torch.allclose(batch.loss(logits), expected, atol=1e-6)


def test_a_batch_of_classes_without_weight_has_no_loss():
    scoring = for_training(raysim.CLASSIFICATION, 0.0, (0.0, 1.0))
    logits = torch.tensor([[0.3, 0.1]], requires_grad=True)
    loss = raysim.Batch(logits.detach(), torch.tensor([0]), None, scoring).loss(logits)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.item() == 0 and not gradient.any()


@pytest.mark.usefixtures("resident_actors")
def test_a_kept_optimizer_is_the_same_on_actors(tmp_path):
    given = {"local.optimizer": "adam", "local.keep": True, "method.name": "ditto", "rounds": 3}
    inline = run(tmp_path / "inline", **given)
    actors = run(tmp_path / "actors", **given, **{"engine.backend": "ray", "engine.actors": 2})
    assert all(torch.equal(actors.params[n], t) for n, t in inline.params.items())
    afresh = run(tmp_path / "afresh", **{**given, "local.keep": False})
    assert not all(torch.equal(afresh.params[n], t) for n, t in inline.params.items())


def test_a_stage_and_the_method_keep_their_state_beside_an_optimizers(tmp_path):
    """A client's file has the optimizer's groups, in each of two passes, and the method's own."""
    given = {"local.optimizer": "adam", "local.keep": True, "method.name": "ditto", "rounds": 3}
    run(tmp_path / "run", **given)
    newest = [load_file(path) for path in (tmp_path / "run/clients").glob("*/*/2_1.safetensors")]
    assert newest
    for tensors in newest:
        groups = {name.partition("/")[0] for name in tensors}
        slots = ("exp_avg", "exp_avg_sq", "step")
        kept = {f"optimizer@{number}.{slot}" for number in (0, 1) for slot in slots}
        assert kept < groups and any("@" not in group for group in groups)


REFUSED = {
    "no such": ({"local.optimizer": "adm"}, "local.optimizer=adm: no such optimizer", "'adam'"),
    "another's": (
        {"local.optimizer": "adam", "local.momentum": 0.9},
        "local.momentum=0.9: local.optimizer=adam has no momentum",
    ),
    "betas of sgd": ({"local.betas": [0.9, 0.99]}, "local.betas=[0.9, 0.99]: local.optimizer=sgd"),
    "no weight": (
        {"local.class_weights": [0, 0.0, 0]},
        "local.class_weights=[0.0, 0.0, 0.0]: must have one above 0",
    ),
    "no such weights": (
        {"local.class_weights": "balance"},
        'local.class_weights="balance": must be a list of numbers, or balanced',
    ),
    "range": ({"local.optimizer": "adam", "local.betas": [0.9, 1.0]}, "less than 1"),
    "nothing to keep": ({"local.keep": True}, "local.keep=true", "keeps nothing"),
    "epochs and steps": (
        {"local.steps": 3, "local.epochs": 2},
        "local.steps=3: takes the place of local.epochs=2",
    ),
    "drawn epochs": (
        {"method.name": "fednova", "method.max_epochs": 3, "local.steps": 3, "local.epochs": 1},
        "local.steps=3: does not go with method.name=fednova",
    ),
    "two decays": (
        {"local.schedule": "cosine", "local.lr_decay": 0.9},
        "local.lr_decay=0.9: must be 1.0 with local.schedule=cosine",
    ),
    "rising": (
        {"local.schedule": "linear", "local.lr": 0.1, "local.lr_min": 0.1, "local.lr_decay": 1.0},
        "local.lr_min=0.1: must be below local.lr=0.1",
    ),
    "warm-up without an end": (
        {"local.warmup_rounds": 100, "rounds": 100},
        "local.warmup_rounds=100: must be below rounds=100",
    ),
    "scaled steps": (
        {"method.name": "fsvrg", "local.warmup_rounds": 2},
        "local.warmup_rounds=2: does not go with method.name=fsvrg",
    ),
    "another shape": (
        {"local.optimizer": f"{__name__}:Summed"},
        f"local.optimizer={__name__}:Summed: direction",
        "a tensor of the gradient's shape",
    ),
    "a field without a value": (
        {"local.optimizer": f"{__name__}:Demanding"},
        f"local.optimizer={__name__}:Demanding: its field rho has no value; give it a default",
    ),
    "a slot of the engine's": (
        {"local.optimizer": f"{__name__}:Counting", "local.keep": True},
        "Counting: slots returned ('step',); must return a tuple of names other than 'step'",
    ),
    "variates": (
        {"method.name": "scaffold", "local.optimizer": "adam"},
        "local.optimizer=adam: does not go with method.name=scaffold",
    ),
    "a chain's": (
        {
            "method.name": "chain",
            "method.methods": {"fedprox": {}, "fednova": {}, "fedavg": {}},
            "local.optimizer": "adam",
        },
        "local.optimizer=adam: does not go with method.name=chain, which needs",
    ),
    "clipped": (
        {"method.name": "fsvrg", "local.clip_norm": 1.0},
        "local.clip_norm=1.0: does not go with method.name=fsvrg",
    ),
    "layers in turns": (
        {"method.name": "divide_and_conquer", "local.optimizer": "adam", "local.keep": True},
        "local.keep=true: does not go with method.name=divide_and_conquer",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_do_not_go_together_are_refused(case):
    overrides, *parts = REFUSED[case]
    with pytest.raises(SettingsError) as caught:
        raysim.load_config("mnist-fedavg", overrides)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert all(part in text for part in parts), text


@pytest.mark.parametrize("name", [*REGISTERED])
def test_fields_of_an_optimizer_are_described(name):
    for field in REGISTERED.get(name).model_fields.values():
        assert field.description


OF_TASKS = {
    "too few": ({"local.class_weights": [1.0, 2.0]}, "local.class_weights=[1.0, 2.0]: must have 3"),
    "own loss": (
        {"local.label_smoothing": 0.1},
        "local.label_smoothing=0.1: the task has its own loss",
    ),
    "own loss, balanced": (
        {"local.class_weights": "balanced"},
        "local.class_weights=balanced: the task has its own loss",
    ),
}


@pytest.mark.parametrize("case", OF_TASKS)
def test_settings_that_do_not_suit_the_task_are_refused(tmp_path, case):
    overrides, part = OF_TASKS[case]
    given = task()
    if case.startswith("own loss"):
        given = replace(given, scoring=replace(raysim.CLASSIFICATION, losses=own_losses))
    with pytest.raises(SettingsError) as caught:
        raysim.run(make_settings(tmp_path, **overrides), given)
    assert part in str(caught.value)


def own_losses(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def test_a_planned_schedule_is_not_prolonged(tmp_path):
    run(tmp_path / "run", rounds=2, **{"local.schedule": "cosine"})
    with pytest.raises(RunError, match=r"rounds=4: must be 2 with local\.schedule=cosine"):
        raysim.resume(tmp_path / "run", task(), overrides={"rounds": 4})


class Normed(raysim.Optimizer):
    """Averaged gradients, scaled to a norm: an element of a direction depends on all others."""

    eps: float = 1e-8

    @property
    def slots(self):
        return ("mean",)

    def direction(self, gradient, slots, step):
        mean = slots["mean"].mul_(1 - 1 / step).add_(gradient / step)
        return mean / (mean.norm() + self.eps)


class Summed(raysim.Optimizer):
    def direction(self, gradient, slots, step):
        return gradient.sum()


class Counting(raysim.Optimizer):
    @property
    def slots(self):
        return ("step",)

    def direction(self, gradient, slots, step):
        return gradient


class Demanding(raysim.Optimizer):
    rho: float

    def direction(self, gradient, slots, step):
        return self.rho * gradient


class Signs(raysim.Optimizer):
    """signSGD: steps along the signs of the gradient."""

    def direction(self, gradient, slots, step):
        return gradient.sign()


def test_an_optimizer_of_ones_own(tmp_path):
    class TorchSigns(torch.optim.SGD):
        def step(self):
            for group in self.param_groups:
                for param in group["params"]:
                    param.grad.sign_()
            super().step()

    given = {"local.optimizer": f"{__name__}:Signs"}
    result = run(tmp_path / "run", **given)
    assert_equal(result.params, Reference(TorchSigns, [LR] * ROUNDS).run(cohorts(result)))


def test_a_stack_sees_each_clients_gradient_by_itself(tmp_path):
    given = {"local.optimizer": f"{__name__}:Normed", "local.eps": 0.1}
    stacked = run(tmp_path / "stacked", **given, **MODES["stacked"])
    assert_equal(stacked.params, run(tmp_path / "alone", **given).params)
