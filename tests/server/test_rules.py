"""Rules of the server against NumPy, the pair FedAdam, rules of a user's own, and refusals."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from safetensors.numpy import load_file

import raysim
from raysim.api.method import METHODS
from raysim.methods.fedavg import FedAvg
from tests.docs.blocks import ROOT, blocks_of
from tests.methods import common, test_fednova, test_oracle
from tests.methods.test_oracle import LR, NAMES, SIZES, assert_close
from tests.methods.test_transforms import MU, ROUNDS, local_training, run_half
from tests.tasks import StopAfter, make_settings, make_task, model_of

STEP, BETA1, BETA2, TAU = 0.05, 0.7, 0.8, 0.01
ADAPTIVE = {"server.lr": STEP, "server.beta1": BETA1, "server.tau": TAU}
RULES = {
    "adam": {"server.name": "adam", **ADAPTIVE, "server.beta2": BETA2},
    "yogi": {"server.name": "yogi", **ADAPTIVE, "server.beta2": BETA2},
    "adagrad": {"server.name": "adagrad", **ADAPTIVE},
    "momentum": {"server.name": "momentum", "server.lr": 0.5, "server.beta": BETA1},
}


def start_of(w):
    """What a rule keeps before the first round."""
    return [np.zeros_like(p) for p in w], [np.full_like(p, TAU**2) for p in w]


def step_of(rule, w, mean, kept, lr=STEP):
    """The parameters after a round, and what the rule keeps."""
    m, v = kept
    delta = [q - p for p, q in zip(w, mean, strict=True)]
    if rule == "momentum":
        m = [BETA1 * a + d for a, d in zip(m, delta, strict=True)]
        return [p + 0.5 * a for p, a in zip(w, m, strict=True)], (m, v)
    m = [BETA1 * a + (1 - BETA1) * d for a, d in zip(m, delta, strict=True)]
    squared = [d**2 for d in delta]
    if rule == "adam":
        v = [BETA2 * a + (1 - BETA2) * d for a, d in zip(v, squared, strict=True)]
    if rule == "yogi":
        v = [a - (1 - BETA2) * d * np.sign(a - d) for a, d in zip(v, squared, strict=True)]
    if rule == "adagrad":
        v = [a + d for a, d in zip(v, squared, strict=True)]
    moved = [p + lr * a / (np.sqrt(b) + TAU) for p, a, b in zip(w, m, v, strict=True)]
    return moved, (m, v)


def fedprox(w, clients, cohort):
    """The mean of the models of a cohort, by samples."""
    ends = [local_training(w, clients[k], LR, [0.0] * len(w), {}, MU) for k in cohort]
    sizes = [len(clients[k][1]) for k in cohort]
    return [np.average(parts, axis=0, weights=sizes) for parts in zip(*ends, strict=True)]


@pytest.mark.parametrize("stacked", [0, 2])
@pytest.mark.parametrize("rule", RULES)
def test_rounds_of_fedprox(tmp_path, rule, stacked):
    prox = {"method.name": "fedprox", "method.mu": MU, "engine.vectorize": stacked}
    result, w, clients, cohorts = run_half(tmp_path, {**prox, **RULES[rule]})
    kept = start_of(w)
    for cohort in cohorts:
        w, kept = step_of(rule, w, fedprox(w, clients, cohort), kept)
    assert_close(result.params, w)
    state = load_file(result.run_dir / f"checkpoints/round_{ROUNDS:06d}/state.safetensors")
    for group, values in zip("m" if rule == "momentum" else "mv", kept, strict=False):
        assert_close(state, values, [f"{group}/{name}" for name in NAMES])


def test_rounds_of_a_method_that_moves_the_model_otherwise(tmp_path):
    """FedNova, then Adam along the change that it makes."""
    nova = {"method.name": "fednova", "method.max_epochs": 4}
    result, w, clients, cohorts = run_half(tmp_path, {**nova, **RULES["adam"]})
    steps, kept = test_fednova.steps_of(result), start_of(w)
    for number, cohort in enumerate(cohorts):
        own = {(0, k): steps[number, k] for k in cohort}
        mean = test_fednova.fednova(w, clients, [cohort], own)
        w, kept = step_of("adam", w, mean, kept)
    assert_close(result.params, w)


def test_the_rate_follows_its_schedule(tmp_path):
    rates = {"server.lr_decay": 0.5, "server.warmup_rounds": 1}
    prox = {"method.name": "fedprox", "method.mu": MU}
    result, w, clients, cohorts = run_half(tmp_path, {**RULES["yogi"], **rates, **prox})
    kept, lrs = start_of(w), [STEP / 2, STEP, STEP / 2, STEP / 4]
    for lr, cohort in zip(lrs, cohorts, strict=True):
        w, kept = step_of("yogi", w, fedprox(w, clients, cohort), kept, lr)
    assert_close(result.params, w)
    assert result.metrics["server_lr"].to_pylist() == pytest.approx(lrs)


def test_buffers_become_the_mean(tmp_path):
    common.assert_buffers_become_the_mean(tmp_path, {"server.name": "yogi"})


REFUSED = {"divide_and_conquer", "dp_ftrl", "fedat", "fedma", "fedproto", "local"}
REFUSED |= {"afl", "fedadam", "fedex_lora", "flexlora", "flora", "rolora"}
"""Methods whose server does what no rule goes with, by their defaults."""
NEEDED = {
    "chain": {"method.methods": {"fedprox": {}, "scaffold": {}, "moon": {"projection": None}}},
    "fedfusion": {"method.operator": "single"},
}
OTHERWISE = (
    *("centralized", "chain", "ditto", "drfa", "fedala", "fedasync", "fedbabu", "fedbuff"),
    *("feddyn", "fedfusion", "fedrep", "fsvrg", "mifl", "momentum", "pfedme", "powersgd", "qffl"),
    *("scaffold", "term"),
)
"""Methods with a round, a server or a state of their own that go with every rule."""


def test_every_method_has_decided():
    stated = {name for name in METHODS if METHODS.get(name)().own_server}
    assert stated == REFUSED


@pytest.mark.parametrize("method", OTHERWISE)
def test_a_step_of_half_the_length_ends_halfway(tmp_path, method):
    """The rule moves the model along the change that the method makes, whatever that is."""
    ends, half = [], {"server.name": "momentum", "server.beta": 0, "server.lr": 0.5}
    for number, rule in enumerate(({}, half)):
        settings = make_settings(
            tmp_path / str(number),
            **{"method.name": method, "rounds": 1, "fraction": 0.5, **NEEDED.get(method, {})},
            **rule,
        )
        ends.append(raysim.run(settings, make_task(SIZES)))
    whole, halfway = ({n: t.numpy() for n, t in end.params.items()} for end in ends)
    names = [name for name in NAMES if name in whole]
    start = test_oracle.start_of(make_task(SIZES), names)
    for name, first in zip(names, start, strict=True):
        np.testing.assert_allclose(halfway[name], (first + whole[name]) / 2, 1e-4, 1e-6)
    assert any(np.abs(whole[n] - w).max() > 1e-3 for n, w in zip(names, start, strict=True))


@pytest.mark.parametrize("method", sorted(REFUSED))
def test_methods_whose_server_does_more_are_refused(method):
    message = f"^server.name=adam: does not go with method.name={method}, whose server .*; leave it"
    with pytest.raises(raysim.SettingsError, match=message):
        raysim.load_config(
            "mnist-fedavg", {"server.name": "adam", "method.name": method, "fraction": 1.0}
        )


def test_only_the_settings_that_rest_on_the_model_are_refused():
    for method, more in (("afl", {"deploy": "last"}), ("mifl", {"delivery": "later"})):
        given = {"server.name": "adam", "method.name": method, "fraction": 1.0}
        raysim.load_config("mnist-fedavg", given | {f"method.{k}": v for k, v in more.items()})
    with pytest.raises(raysim.SettingsError, match=r"mifl, whose server delivers the model"):
        raysim.load_config(
            "mnist-fedavg",
            {"server.name": "adam", "method.name": "mifl", "method.delivery": "own"},
        )


PAIRS = {
    "plain": {},
    "coded": {"channel": {"topk": {"fraction": 0.3}, "int8": {}}, "server.schedule": "cosine"},
}


@pytest.mark.parametrize("case", PAIRS)
def test_fedadam_is_a_name_for_the_pair(tmp_path, case):
    """The same bits, resumed in the middle, too."""
    given = {"beta1": BETA1, "beta2": BETA2, "tau": TAU}
    name = {"method.name": "fedadam", "method.lr_server": STEP}
    pair = {"method.name": "fedavg", "server.name": "adam", "server.lr": STEP}
    name |= {f"method.{key}": value for key, value in given.items()}
    pair |= {f"server.{key}": value for key, value in given.items()}
    more = {"rounds": 4, "fraction": 0.5, **PAIRS[case]}
    runs = []
    for number, settings in enumerate((name, pair)):
        given = make_settings(tmp_path / str(number), **settings, **more)
        runs.append(raysim.run(given, make_task(SIZES)))
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "half", **pair, **more), make_task(SIZES), StopAfter(2))
    runs.append(raysim.resume(tmp_path / "half", make_task(SIZES)))
    first, *others = ([model_of(run.run_dir), state_of(run), figures_of(run)] for run in runs)
    assert others == [first, first]


def state_of(result):
    return (result.run_dir / "checkpoints/round_000004/state.safetensors").read_bytes()


def figures_of(result):
    names = [n for n in result.metrics.column_names if not n.endswith("seconds")]
    return result.metrics.select(sorted(names)).to_pydict()


def test_the_rule_of_the_page(tmp_path, monkeypatch):
    blocks = blocks_of(ROOT / "docs/server.md")
    (text,) = (block.text for block in blocks if "raysim.ServerRule" in block.text)
    (tmp_path / "my_rule.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    own = {"server.name": "my_rule:SignStep", "server.lr": 0.02, "server.lr_decay": 0.5}
    prox = {"method.name": "fedprox", "method.mu": MU}
    result, w, clients, cohorts = run_half(tmp_path, {**prox, **own})
    m = [np.zeros_like(p) for p in w]
    for number, cohort in enumerate(cohorts):
        mean = fedprox(w, clients, cohort)
        m = [0.9 * t + q - p for t, p, q in zip(m, w, mean, strict=True)]
        w = [p + 0.02 * 0.5**number * np.sign(t) for p, t in zip(w, m, strict=True)]
    assert_close(result.params, w)


class Signed(raysim.ServerRule):
    """A user's rule without a rate of its own."""

    keeps: ClassVar = ("trend",)

    def step(self, params, mean, kept):
        return mean, kept


def test_a_rule_without_a_rate_leaves_the_schedule_to_the_method():
    own, schedule = {"server.name": f"{__name__}:Signed"}, {"server.lr_decay": 0.9}
    with pytest.raises(raysim.SettingsError, match=r"^server.lr_decay=0.9: does not go with"):
        raysim.load_config("mnist-fedavg", own | schedule)
    settings = raysim.load_config("mnist-fedavg", {**own, **schedule, "method.name": "scaffold"})
    assert settings.server_lr == 1.0


class InPlace(Signed):
    """A rule that changes the kept state."""

    def step(self, params, mean, kept):
        for w in params.values():
            w.zero_()
        return mean, kept


class Lacking(Signed):
    """A rule that returns a part."""

    def step(self, params, mean, kept):
        return {}, kept


class Forgetting(Signed):
    """A rule that returns no groups."""

    def step(self, params, mean, kept):
        return mean, {}


class Doubling(Signed):
    """A rule that returns parameters in another dtype."""

    def step(self, params, mean, kept):
        return {name: w.double() for name, w in mean.items()}, kept


class Infinite(Signed):
    """A rule that diverges."""

    def step(self, params, mean, kept):
        return {name: w / 0 for name, w in mean.items()}, kept


class Clashing(Signed):
    """A rule that keeps a group of SCAFFOLD's name."""

    keeps: ClassVar = ("c",)


class Failing(Signed):
    """A rule that fails."""

    def step(self, params, mean, kept):
        raise IndexError("none left")


BROKEN = {
    InPlace: "step changes the state in place",
    **dict.fromkeys((Lacking, Forgetting, Doubling), "step returned .*; must return parameters"),
    Infinite: "step returned a value that is not finite",
    Clashing: "keeps a group 'c', and so does method.name=scaffold",
    Failing: "step failed: IndexError: none left",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_rule_ends_the_run_in_one_line(tmp_path, kind):
    own = {"server.name": f"{__name__}:{kind.__name__}", "method.name": "scaffold", "rounds": 1}
    message = f"server.name={__name__}:{kind.__name__}: {BROKEN[kind]}"
    with pytest.raises(raysim.RaysimError, match=message) as caught:
        raysim.run(make_settings(tmp_path / "run", **own), make_task(SIZES))
    assert "\n" not in str(caught.value)


class Mixing(FedAvg):
    """A user's method whose server mixes, which a rule moves along."""

    def server_update(self, now, state, reduced):
        model, mean = state.groups["model"], reduced.means["model"]
        return raysim.ServerState({"model": {n: (model[n] + mean[n]) / 2 for n in mean}})


def test_a_users_method_goes_with_rules_and_need_not_keep_their_groups(tmp_path):
    given = {"method.name": f"{__name__}:Mixing", **RULES["adam"]}
    result, w, clients, cohorts = run_half(tmp_path, given)
    kept = start_of(w)
    for cohort in cohorts:
        ends = [local_training(w, clients[k], LR, [0.0] * len(w), {}, 0.0) for k in cohort]
        sizes = [len(clients[k][1]) for k in cohort]
        mean = [np.average(parts, axis=0, weights=sizes) for parts in zip(*ends, strict=True)]
        mixed = [(p + q) / 2 for p, q in zip(w, mean, strict=True)]
        w, kept = step_of("adam", w, mixed, kept)
    assert_close(result.params, w)
