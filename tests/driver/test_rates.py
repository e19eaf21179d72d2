"""Learning rates by round, of clients and of the server, are a function of the committed state."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

import raysim
from raysim.methods.fedavg import FedAvg
from tests.tasks import UNEQUAL, StopAfter, make_settings, make_task, model_of

PLATEAU = {"lr_patience": 0, "lr_threshold": 0.3, "lr_factor": 0.5}
BOTH = {"method.name": "fedadam", "local.schedule": "plateau", "server.schedule": "plateau"}
BOTH |= {
    f"{group}.{name}": value for group in ("local", "server") for name, value in PLATEAU.items()
}
TABLE = {"schedule": "table", "lr_rounds": [2, 4], "lr_values": [0.05, 0.01]}
OF_TABLE = {"method.name": "fedadam"}
OF_TABLE |= {
    f"{group}.{name}": value for group in ("local", "server") for name, value in TABLE.items()
}
COSINE = {"method.name": "fedadam", "server.schedule": "cosine", "server.warmup_rounds": 1}
OVERLAPPING = {"method.name": "fedbuff", "method.buffer": 2, "method.concurrency": 3}
OVERLAPPING |= {name: value for name, value in BOTH.items() if name != "method.name"}


class Stepping(FedAvg):
    """A server with a rate of its own: a step along the mean change."""

    server_rate: ClassVar[str] = "rate"
    rate: float = 0.5

    def server_update(self, now, state, reduced):
        model, mean = state.groups["model"], reduced.means["model"]
        moved = {name: w + now.server_lr * (mean[name] - w) for name, w in model.items()}
        return state.replace(model=moved)


OWN = {"method.name": f"{__name__}:Stepping", "server.lr_decay": 0.5}


def run(path, rounds=6, **options):
    options = {"fraction": 0.5, "seed": 3, "checkpoint_every": 2, **options}
    return raysim.run(make_settings(path, rounds=rounds, **options), make_task(UNEQUAL))


def column(result, name):
    return result.metrics[name].to_pylist()


def plateau_of_torch(losses, lr):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=lr)
    scheduler, rates = ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.3), []
    for loss in losses:
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step(loss)
    return rates


def test_rates_fall_where_the_train_loss_no_longer_improves(tmp_path):
    result = run(tmp_path, **BOTH)
    losses = column(result, "train_loss")
    for name, full in (("lr", 0.1), ("server_lr", 0.01)):
        assert column(result, name) == pytest.approx(plateau_of_torch(losses, full), rel=1e-12)
        assert len({*column(result, name)}) > 2


def test_rates_of_a_table_train_as_runs_with_these_rates(tmp_path):
    """Before the first given round clients and server have those of the settings."""
    result = run(tmp_path / "table", **OF_TABLE)
    assert column(result, "lr") == [0.1, 0.05, 0.05, 0.01, 0.01, 0.01]
    assert column(result, "server_lr") == [0.01, 0.05, 0.05, 0.01, 0.01, 0.01]
    given = {"local.lr": 0.05, "method.name": "fedadam", "method.lr_server": 0.05}
    tables = {f"{group}.schedule": "table" for group in ("local", "server")}
    tables |= {f"{group}.lr_rounds": [1] for group in ("local", "server")}
    tables |= {f"{group}.lr_values": [0.05] for group in ("local", "server")}
    run(tmp_path / "rates", rounds=2, **given)
    run(tmp_path / "first", rounds=2, **{"method.name": "fedadam"}, **tables)
    assert model_of(tmp_path / "first") == model_of(tmp_path / "rates")


@pytest.mark.parametrize("name", ["fedbuff", "scaffold"])
def test_a_server_follows_a_table_as_its_own_rate(tmp_path, name):
    more = {"method.name": name, "rounds": 2}
    table = {"server.schedule": "table", "server.lr_rounds": [1], "server.lr_values": [0.5]}
    run(tmp_path / "own", **more, **{"method.lr_global": 0.5})
    run(tmp_path / "table", **more, **table)
    assert model_of(tmp_path / "own") == model_of(tmp_path / "table")


class Misnamed(Stepping):
    """A server whose rate is no field."""

    server_rate: ClassVar[str] = "rates"


def test_a_rate_that_is_no_field_is_refused(tmp_path):
    with pytest.raises(raysim.SettingsError) as raised:
        run(tmp_path, **{"method.name": f"{__name__}:Misnamed"})
    assert str(raised.value).endswith(
        "Misnamed: server_rate='rates': must be the name of a field; did you mean 'rate'?"
    )


def test_a_method_of_ones_own_follows_the_rate_of_its_server(tmp_path):
    result = run(tmp_path / "own", rounds=3, **OWN)
    assert column(result, "server_lr") == [0.5, 0.25, 0.125]
    start = {"start_from": str(tmp_path / "own")}
    still = {"server.schedule": "table", "server.lr_rounds": [1], "server.lr_values": [1e-12]}
    stopped = run(tmp_path / "still", rounds=1, **start, **OWN | still | {"server.lr_decay": 1.0})
    for name, tensor in stopped.params.items():
        assert torch.allclose(tensor, result.params[name], atol=1e-9)


WAYS = {
    "plateaus": BOTH,
    "held out": BOTH
    | {"evaluation.holdout": 0.2, "evaluation.every": 2, "server.lr_metric": "holdout_accuracy"},
    "table": OF_TABLE,
    "cosine": COSINE,
    "own": OWN,
    "rule": {"server.name": "momentum", "server.schedule": "cosine"},
    "overlapping rounds": OVERLAPPING,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_run_has_the_same_rates(tmp_path, way):
    whole = run(tmp_path / "whole", **WAYS[way])
    settings = {"fraction": 0.5, "seed": 3, "checkpoint_every": 2, **WAYS[way]}
    with pytest.raises(KeyboardInterrupt):
        raysim.run(
            make_settings(tmp_path / "cut", rounds=6, **settings), make_task(UNEQUAL), StopAfter(3)
        )
    resumed = raysim.resume(tmp_path / "cut", make_task(UNEQUAL))
    assert model_of(tmp_path / "cut") == model_of(tmp_path / "whole")
    for name in {"lr", "server_lr"} & {*whole.metrics.column_names}:
        assert column(resumed, name) == column(whole, name)
    assert any(
        len({*column(whole, name)}) > 1
        for name in ("lr", "server_lr")
        if name in whole.metrics.column_names
    )


@pytest.mark.parametrize("way", ["plateaus", "held out"])
def test_a_grown_run_goes_on_with_its_rates(tmp_path, way):
    """The evaluation at its old end, which is no multiple of evaluation.every, moves none."""
    whole = run(tmp_path / "whole", **WAYS[way])
    run(tmp_path / "grown", rounds=3, **WAYS[way])
    grown = raysim.resume(tmp_path / "grown", make_task(UNEQUAL), overrides={"rounds": 6})
    assert model_of(tmp_path / "grown") == model_of(tmp_path / "whole")
    assert column(grown, "server_lr") == column(whole, "server_lr")
    run(tmp_path / "planned", rounds=3, **COSINE)
    with pytest.raises(raysim.RunError, match=r"rounds=4: must be 3 with server\.schedule=cosine"):
        raysim.resume(tmp_path / "planned", make_task(UNEQUAL), overrides={"rounds": 4})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"local.schedule": "step"}, 'local.schedule="step": '),
        ({"local.schedule": "table"}, "local.schedule=table: needs rounds and their rates"),
        (
            {"local.schedule": "table", "local.lr_rounds": [3, 2], "local.lr_values": [1.0, 2.0]},
            "local.lr_rounds=[3, 2]: must be ascending",
        ),
        (
            {"local.schedule": "table", "local.lr_rounds": [3], "local.lr_values": [1.0, 2.0]},
            "local.lr_values=[1.0, 2.0]: must be one for each of lr_rounds=[3]",
        ),
        (
            {"local.schedule": "table", "local.lr_rounds": [3], "local.lr_values": [0.0]},
            "local.lr_values",
        ),
        ({"local.lr_factor": 0.2}, "local.lr_factor=0.2: needs local.schedule=plateau"),
        (
            {"local.schedule": "plateau", "local.lr_rounds": [1], "local.lr_values": [1.0]},
            "local.lr_rounds=[1]: needs local.schedule=table",
        ),
        (
            {"local.schedule": "plateau", "local.lr_min": 0.1},
            "local.lr_min=0.1: must be below local.lr=0.1",
        ),
        (
            {"local.schedule": "table", "local.warmup_rounds": 1},
            "local.warmup_rounds=1: must be 0 with local.schedule=table",
        ),
        (
            {"server.schedule": "cosine"},
            "server.schedule=cosine: does not go with method.name=fedavg",
        ),
        ({"server.lr_decay": 0.9}, "server.lr_decay=0.9: does not go with method.name=fedavg"),
        (
            {"server.schedule": "linear", "method.name": "fedadam", "server.lr_min": 0.5},
            "server.lr_min=0.5: must be below the rate of method.name=fedadam, 0.01",
        ),
        (
            {"server.name": "adam", "server.schedule": "linear", "server.lr_min": 0.5},
            "server.lr_min=0.5: must be below server.lr=0.01",
        ),
        (
            {"method.name": "fedadam", "server.warmup_rounds": 100},
            "server.warmup_rounds=100: must be below rounds=100",
        ),
    ],
)
def test_what_goes_with_no_schedule_is_refused(given, said):
    with pytest.raises(raysim.SettingsError) as refused:
        raysim.load_config("mnist-fedavg", {"local.lr": 0.1, "rounds": 100, **given})
    assert str(refused.value).startswith(said) and "\n" not in str(refused.value)


def test_metrics_that_a_run_lacks_are_refused_before_it_starts(tmp_path):
    lacking = {"local.schedule": "plateau", "local.lr_metric": "holdout_loss"}
    with pytest.raises(raysim.SettingsError, match=r"^local\.lr_metric=holdout_loss: needs eval"):
        run(tmp_path / "run", **lacking)
    assert not (tmp_path / "run").exists()
