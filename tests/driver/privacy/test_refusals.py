"""What no accountant covers is refused in one line: what is stated, read or sent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import raysim
from raysim.aggregation.mean import Mean
from raysim.api.rules import Pass
from raysim.channel.clip import Clip
from raysim.channel.gaussian import Gaussian
from raysim.methods.dp_ftrl import DpFtrl
from raysim.methods.fedavg import FedAvg
from raysim.selection.poisson import Poisson
from raysim.testing.tasks import SmallNet
from tests.driver.privacy.test_accounting import BASE, SIZES
from tests.tasks import Notes, make_settings, make_task

HERE = "tests.driver.privacy.test_refusals"
UNIFORM = {"selection.name": "uniform"}


class Double(raysim.Stage):
    """Doubles differences."""

    def send(self, view: raysim.View, upload: raysim.Upload) -> raysim.Upload:
        return raysim.Upload(
            {g: {n: d * 2 for n, d in of.items()} for g, of in upload.sums.items()}
        )


class Pooled(FedAvg):
    """Trains on the samples of all clients."""

    pooled = True


class Counts(raysim.Stage):
    """Has clients send a number, and reads their sum at the server."""

    def send(self, view: raysim.View, upload: raysim.Upload) -> raysim.Upload:
        return replace(upload, scalars={"count": 1.0})

    def update(self, now: Any, reduced: Any) -> Any:
        return {}, {"count": float(reduced.scalars["count"].sum())}

    @property
    def bounds_norm(self) -> bool:
        return True


class First(Poisson):
    """The same clients in every round, of a base that draws them."""

    def select(self, sampling: raysim.Sampling) -> list[int]:
        return [0, 1]


class Tenfold(Mean):
    """Ten times the share of a base that bounds it."""

    def factor(self, arrived: int, expected: float) -> float:
        return 10.0 * super().factor(arrived, expected)


class Longer(Clip):
    """Ten times as long as a base that bounds norms."""

    def send(self, view: raysim.View, upload: raysim.Upload) -> raysim.Upload:
        sent = super().send(view, upload)
        sums = {g: {n: 10 * d for n, d in of.items()} for g, of in sent.sums.items()}
        return replace(sent, sums=sums)


class Quiet(Gaussian):
    """No noise, of a base that claims privacy for it."""

    def receive(self, now: Any, reduced: raysim.Reduced) -> raysim.Reduced:
        return reduced


class Quieter(Quiet):
    """Other defaults of a class that has lost a claim."""

    clip: float = 0.5


class Off:
    """Changes code of whatever it is mixed into."""

    acts_on_empty_rounds = False


class Mixed(Off, Gaussian):
    """Changes what a claim rests on by a class before that which makes it."""


class Serverless(raysim.Stage):
    """Has no server's part, and gives that to a class that inherits from it, too."""

    def has_server_part(self) -> bool:
        return False


class Behind(Gaussian, Serverless):
    """Changes what a claim rests on by a class behind that which makes it."""


class Later(Gaussian):
    """Has its code changed after its body."""


Later.receive = Quiet.receive  # type: ignore[method-assign]


class Attribute(Poisson):
    """Has a function of the instance in place of that of its class."""

    def model_post_init(self, context: Any) -> None:
        object.__setattr__(self, "select", lambda now: [0, 1])


class Looked(Poisson):
    """Finds another function where that of its class is looked up."""

    def __getattribute__(self, name: str) -> Any:
        return (lambda now: [0, 1]) if name == "select" else super().__getattribute__(name)


class Counted(FedAvg):
    """Reads in the server's part how many clients have arrived, or which take part."""

    what: str

    def server_update(self, now: Any, state: Any, reduced: raysim.Reduced) -> Any:
        given = {"arrived": reduced.clients, "selected": now.cohort, "samples": reduced.samples}
        float(now.steps(0) if self.what == "steps" else len(given[self.what]))
        return super().server_update(now, state, reduced)


class Follows(FedAvg):
    """Has those whose updates have arrived train once more, and drops that; odd clients fail."""

    def round(self, now: Any, state: Any) -> Any:
        work = replace(self.training_pass(now, state), lr=lambda steps: 0.1 / steps)
        reduced = yield replace(work, rules=raysim.Rules(finish=_even))
        nothing = raysim.Rules(finish=lambda view, trained: raysim.Upload())
        yield replace(work, clients=reduced.clients, rules=nothing, bases={})
        return self.server_update(now, state, reduced), {}


def _even(view: raysim.View, trained: raysim.Trained) -> raysim.Upload:
    if view.client % 2:
        raise ValueError("no")
    return raysim.Upload(sums={"model": view.params})


class Present(raysim.Stage):
    """Reads at the server how many clients have arrived, or were selected."""

    what: str

    def receive(self, now: Any, reduced: raysim.Reduced) -> raysim.Reduced:
        len(reduced.clients if self.what == "arrived" else now.cohort)
        return reduced


class Quick(DpFtrl):
    """Another selection than the one on which the claim of a method rests."""

    @property
    def selection(self) -> None:
        return None


class Sized(FedAvg):
    """Its server reads how many samples clients have."""

    def server_update(self, now: Any, state: Any, reduced: Any) -> Any:
        return state if now.samples[0] else super().server_update(now, state, reduced)


class ByRound(raysim.Temperature):
    """T by what is said in `reads`, of each client's history, size or time."""

    what: str

    def choose(self, now: Any) -> float:
        given = {"times": lambda: now.history.times, "losses": lambda: now.history.losses}
        given |= {"samples": lambda: now.samples[0], "seconds": lambda: now.seconds([0])}
        return 1.0 + 0 * float(np.asarray(given[self.what]()).sum())


class Steady(raysim.Temperature):
    """Keeps a state, and states that it follows nobody."""

    @property
    def follows_clients(self) -> bool:
        return False

    def choose(self, now: Any) -> float:
        return 1.0

    def update(self, now: Any, temperature: float, row: Any) -> Any:
        return {"rounds": np.ones(1)}


class ByLoss(Steady):
    """Follows the losses of clients, of a base that follows nobody."""

    def update(self, now: Any, temperature: float, row: Any) -> Any:
        return {"loss": np.array([row["train_loss"]])}


class Caught(FedAvg):
    """Catches whatever a pass ends in."""

    def round(self, now: Any, state: Any) -> Any:
        try:
            yield self.training_pass(now, state)
        except Exception:
            return state, {}
        return state, {}


class Plain(Gaussian):
    """Settings of its own and further code, which change nothing on which its claim rests."""

    clip: float = 0.5
    own: int = 3

    def doubled(self) -> int:
        return 2 * self.own


class Stated(First):
    """States how it draws, after a class that does not."""

    draw = "poisson"


class Normalised(SmallNet):
    """With BatchNorm: running moments, and a counter in integers."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Sequential(self.hidden, nn.BatchNorm1d(16))


def _send_more(view: raysim.View, trained: raysim.Trained) -> raysim.Upload:
    return raysim.Upload(sums={"model": view.params}, scalars={"loss": 1.0})


def _send_rows(view: raysim.View, trained: raysim.Trained) -> raysim.Upload:
    return raysim.Upload(sums={"model": view.params}, rows={"own": {"model": torch.ones(1)}})


def _send_group(view: raysim.View, trained: raysim.Trained) -> raysim.Upload:
    return raysim.Upload(sums={"model": view.params, "other": {"c": torch.ones(1)}})


class Scalars(FedAvg):
    """Clients report a number beside the model."""

    def rules(self) -> raysim.Rules:
        return raysim.Rules(finish=_send_more)


class Rows(FedAvg):
    """Clients send a group that the server gets from each."""

    def rules(self) -> raysim.Rules:
        return raysim.Rules(finish=_send_rows)


class Group(FedAvg):
    """Clients send a group without a base."""

    def rules(self) -> raysim.Rules:
        return raysim.Rules(finish=_send_group)


def _keep(view: raysim.View, trained: raysim.Trained) -> raysim.Upload:
    return raysim.Upload(sums={"model": view.params}, state={"own": {"c": torch.ones(1)}})


class Keeps(FedAvg):
    """Clients keep a state that `client_init` does not name."""

    def rules(self) -> raysim.Rules:
        return raysim.Rules(finish=_keep)


class Twice(FedAvg):
    """Two passes of a round."""

    def round(self, now: Any, state: Any) -> Any:
        yield self.training_pass(now, state)
        return (yield from super().round(now, state))


class Everyone(FedAvg):
    """Passes over clients that were not selected."""

    def training_pass(self, now: Any, state: Any) -> Pass:
        return Pass(now.everyone, self.broadcast(state), self.rules(), now.epochs, now.lr)


def behind(stage: str) -> dict[str, Any]:
    return {"channel": {"gaussian": {}, f"{HERE}:{stage}": {}}}


LEFT_OUT = "left out"
"""Value of a setting that another component has not."""
REFUSED: dict[str, dict[str, Any]] = {
    f"does not go with selection.name={HERE}:First, whose cohorts cannot be accounted; choose"
    " selection.name=poisson, or uniform for fixed cohorts: it changes 'select' of Poisson, which"
    " 'draw' rests on; leave that as it is, or state 'draw' in the class itself": {
        "selection.name": f"{HERE}:First"
    },
    f"does not go with selection.name={HERE}:Looked, whose cohorts cannot be accounted": {
        "selection.name": f"{HERE}:Looked"
    },
    f"does not go with selection.name={HERE}:Attribute, which has an attribute 'select' that is": {
        "selection.name": f"{HERE}:Attribute"
    },
    f"does not go with aggregation.name={HERE}:Tenfold, which at its settings does not": {
        "aggregation.name": f"{HERE}:Tenfold"
    },
    f"channel.{HERE}:Longer: cannot stand after channel.gaussian, whose clip it may exceed; put it"
    " before: it changes": behind("Longer"),
    **{
        f"does not go with temperature.name={HERE}:ByRound, which reads the {words}": {
            "temperature": {"name": f"{HERE}:ByRound", "what": what}
        }
        for what, words in {
            **dict.fromkeys(("times", "losses"), "participations and losses of single clients"),
            **{"samples": "sizes of clients", "seconds": "durations of clients"},
        }.items()
    },
    f"does not go with temperature.name={HERE}:ByLoss": {"temperature.name": f"{HERE}:ByLoss"},
    f"does not go with channel.{HERE}:Present, which reads the clients of a round": {
        "method.name": f"{HERE}:Caught",
        "channel": {"gaussian": {}, f"{HERE}:Present": {"what": "selected"}},
    },
    f"does not go with method.name={HERE}:Sized, which reads the sizes of clients": {
        "method.name": f"{HERE}:Sized"
    },
    "delta=0.5: must be at most 1/K": {"channel.gaussian.delta": 0.5},
    "does not go with method.name=scaffold, which reads the clients of a round that have arrived"
    " (Reduced.clients); choose a method that needs means alone, such as method.name=fedavg": {
        "method.name": "scaffold"
    },
    "does not go with method.name=feddyn, which reads the clients of a round": {
        "method.name": "feddyn"
    },
    "does not go with method.name=centralized, which reads the clients of a round (Round.cohort);"
    " choose a method that needs means alone, such as method.name=fedavg; your own method passes"
    " now.cohort on unchanged": {"method.name": "centralized"},
    **{
        f"does not go with method.name={name}, {what}": {
            **{"method.name": "chain", "method.methods": {"fedprox": {}, name: {}}},
        }
        for name, what in {
            "scaffold": "which reads the clients of a round",
            "qffl": "whose clients send 'h/h' beside the change of their tensors",
        }.items()
    },
    "does not go with method.name=chain, whose clients send changes though they were not": {
        **{"method.name": "chain", "method.methods": {"fedprox": {}, f"{HERE}:Everyone": {}}},
    },
    "does not go with method.name=powersgd, whose clients send 'model/": {
        "method.name": "powersgd"
    },
    **{
        f"does not go with method.name={name}, {what}": {
            **UNIFORM,
            **{"method.name": name, "fraction": 1.0},
        }
        for name, what in {
            "afl": "which reads the clients of a round (Round.cohort)",
            "drfa": "which reads the sizes of clients (Round.samples)",
            "term": "whose clients send 'start_loss' beside",
            "fsvrg": "whose clients send 'gradient/",
            f"{HERE}:Pooled": "whose clients send all their samples, which is not accounted",
        }.items()
    },
    "does not go with a method or stage whose clients keep a state between rounds, in": {
        **UNIFORM,
        "method.name": "ditto",
    },
}


def go(path, model=SmallNet, **more: Any) -> raysim.Result:
    few = {"rounds": 2, "selection.name": "poisson"}
    given = {key: each for key, each in {**BASE, **few, **more}.items() if each != LEFT_OUT}
    return raysim.run(make_settings(path, **given), make_task(SIZES, model))


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_accounted_is_refused_before_anything_starts(tmp_path, message):
    with pytest.raises(raysim.SettingsError) as caught:
        go(tmp_path / "run", **REFUSED[message])
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


ALONE = {"channel.gaussian.clip": LEFT_OUT, "channel.gaussian.noise": LEFT_OUT}
LOST = {
    "Quiet": "'receive' of Gaussian, which 'privacy'",
    "Quieter": "'receive' of Gaussian, which 'privacy'",
    "Mixed": "'acts_on_empty_rounds' of Gaussian, which 'privacy'",
    "Behind": "'has_server_part' of Gaussian, which 'privacy'",
    "Later": "'receive' of Gaussian, which 'privacy'",
}


@pytest.mark.parametrize("stage", LOST)
def test_a_class_that_changes_what_its_base_claims_for_is_refused(tmp_path, stage):
    name = f"{HERE}:{stage}"
    with pytest.raises(raysim.SettingsError) as caught:
        go(tmp_path / "run", **ALONE, channel={name: {}})
    assert str(caught.value).startswith(f"channel.{name}: it changes {LOST[stage]} rests on;")
    claims_nothing = {"channel": {name: {"noise": 0}}}
    assert len(go(tmp_path / "none", **ALONE, **claims_nothing).metrics) == 2


@pytest.mark.parametrize(
    ("kind", "name", "own"),
    [
        (Gaussian, "receive", lambda self, now, reduced: reduced),
        (Gaussian, "acts_on_empty_rounds", property(lambda self: False)),
        (Poisson, "select", lambda self, now, history: (0, 1)),
        (Mean, "bounds_share", property(lambda self: True)),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_a_function_set_on_a_class_of_raysim_is_refused(tmp_path, monkeypatch, kind, name, own):
    monkeypatch.setattr(kind, name, own)
    said = (
        rf"channel\.gaussian: .* which has a function '{name}' that was set on its class, and may"
    )
    with pytest.raises(raysim.SettingsError, match=said):
        go(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_method_that_changes_what_its_base_claims_for_is_refused(tmp_path):
    own = {"method.name": f"{HERE}:Quick", **ALONE}
    with pytest.raises(raysim.SettingsError, match="it changes 'selection' of DpFtrl, which 'priv"):
        go(tmp_path / "run", **own)


def test_a_class_that_changes_settings_alone_or_states_a_promise_keeps_it(tmp_path):
    plain = {f"{HERE}:Plain": {"noise": 2.0}}
    base, own, stated = (
        go(tmp_path / name, **more).summary["epsilon"]
        for name, more in {
            "base": {},
            "own": {**ALONE, "channel": plain},
            "stated": {"selection.name": f"{HERE}:Stated"},
        }.items()
    )
    assert base == own == stated


@pytest.mark.parametrize("what", ["arrived", "selected", "samples", "steps"])
def test_a_method_that_reads_who_takes_part_is_refused_before_anything_starts(tmp_path, what):
    """Their number, too, tells of each; a pass may be over those whom the method cannot see."""
    own = {"method": {"name": f"{HERE}:Counted", "what": what}}
    with pytest.raises(raysim.SettingsError) as caught:
        go(tmp_path / "run", **own)
    said = {
        "arrived": "clients of a round that have arrived (Reduced.clients)",
        "selected": "clients of a round (Round.cohort); choose a method that needs means alone",
        "samples": "sizes of clients (Reduced.samples)",
        "steps": "local steps of clients (Round.steps)",
    }
    begins = f"channel.gaussian: does not go with method.name={HERE}:Counted, which reads the "
    assert str(caught.value).startswith(begins + said[what])
    assert not (tmp_path / "run").exists()
    assert len(go(tmp_path / "none", **own, **{"channel.gaussian.noise": 0}).metrics) == 2


def test_a_pass_over_those_that_have_arrived_is_over_these_alone(tmp_path):
    """Its method knows none of them; rates may be a function of steps that it does not see."""
    result = go(tmp_path, **{"method.name": f"{HERE}:Follows", "on_client_error": "drop"})
    assert sum(result.metrics["clients_dropped"].to_pylist()) > 0
    rows = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    passes = [[(r["round"], r["client"]) for r in rows if r["pass"] == n] for n in (0, 1)]
    assert passes[0] and passes[0] == passes[1]


@pytest.mark.parametrize("what", ["arrived", "selected"])
def test_a_stage_that_reads_who_takes_part_is_refused_before_anything_starts(tmp_path, what):
    with pytest.raises(raysim.SettingsError) as caught:
        go(tmp_path / "run", channel={"gaussian": {}, f"{HERE}:Present": {"what": what}})
    assert str(caught.value).startswith(
        f"channel.gaussian: does not go with channel.{HERE}:Present, which reads the clients of"
    )
    assert not (tmp_path / "run").exists()


def test_what_passes_by_the_clip_is_refused(tmp_path):
    message = "clients send 'hidden.1.num_batches_tracked' in whole numbers, which pass by the clip"
    with pytest.raises(raysim.SettingsError, match=message):
        go(tmp_path / "run", Normalised)
    go(tmp_path / "fedbn", Normalised, **{"method.name": "fedbn"})
    go(tmp_path / "clip", Normalised, **{"channel.gaussian.noise": 0})


BESIDE = {
    "Scalars": "send 'loss' beside the change of their tensors",
    "Rows": "send 'own' beside the change of their tensors",
    "Group": "send 'other/c' beside the change of their tensors",
    "Twice": "send changes in more than one pass of a round",
    "Everyone": "send changes though they were not selected",
}


@pytest.mark.parametrize("method", BESIDE)
def test_what_clients_send_beside_one_change_is_refused_before_anything_starts(tmp_path, method):
    """`check` finds it, too."""
    given = {**BASE, "selection.name": "poisson", "method.name": f"{HERE}:{method}"}
    with pytest.raises(raysim.SettingsError) as caught:
        raysim.check(make_settings(tmp_path / "run", **given), make_task(SIZES))
    begins = f"channel.gaussian: does not go with method.name={HERE}:{method}, whose clients "
    assert str(caught.value) == f"{begins}{BESIDE[method]}, which is not accounted"
    assert not (tmp_path / "run").exists()


def test_a_state_that_clients_are_not_said_to_keep_is_refused_in_fixed_cohorts(tmp_path):
    own = {"method.name": f"{HERE}:Keeps"}
    with pytest.raises(raysim.SettingsError, match="whose clients keep a state between rounds, in"):
        go(tmp_path / "fixed", **UNIFORM, **own)
    assert not [*(tmp_path / "fixed/checkpoints").glob("round_*")]
    assert len(go(tmp_path / "poisson", **own).metrics) == 2


def test_a_number_that_another_stage_has_clients_send_is_refused_in_the_first_round(tmp_path):
    with pytest.raises(
        raysim.SettingsError, match=rf"{HERE}:Counts, whose clients send the number 'count'"
    ):
        go(tmp_path, **UNIFORM, **behind("Counts"))


def test_bad_samples_of_some_clients_and_a_model_to_start_from_are_covered_or_noted(tmp_path):
    notes = Notes()
    go(tmp_path / "first", **{"attack.name": "label_flip"})
    start = {"start_from": str(tmp_path / "first")}
    raysim.run(make_settings(tmp_path / "run", **BASE, **start), make_task(SIZES), notes)
    said = "privacy: epsilon covers these rounds alone, not those that trained the model of start"
    assert [note.startswith(said) for note in notes.notes[:2]] == [False, True]


def test_a_population_that_is_not_there_needs_no_accounted_cohorts_but_all_else(tmp_path):
    """Fixed cohorts and clients' states are not those of the rounds that are accounted."""
    given = {"noise_cohort": 1000, "population": 10**6, "delta": 1e-6}
    hypothetical = {f"channel.gaussian.{key}": value for key, value in given.items()}
    result = go(tmp_path / "run", **UNIFORM, **hypothetical, **{"method.name": "ditto"})
    assert "epsilon" not in result.summary and result.summary["hypothetical_epsilon"] > 0
    assert result.metrics["hypothetical_epsilon"].to_pylist() != [None, None]
    assert "hypothetical: a cohort of 1000 of 1000000" in result.summary["privacy"]
    with pytest.raises(raysim.SettingsError, match=r"does not go with method\.name=scaffold"):
        go(tmp_path / "other", **UNIFORM, **hypothetical, **{"method.name": "scaffold"})
