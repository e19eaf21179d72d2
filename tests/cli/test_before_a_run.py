"""`raysim run --explain` and `--dry-run`: a run in words, and what it will take."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from contextlib import suppress

import numpy as np
import pytest

import raysim
from raysim.api.components import Component
from raysim.api.method import METHODS
from raysim.clock import CLOCKS
from raysim.display.units import in_fitting_unit
from raysim.selection import SELECTIONS
from raysim.tuning import estimates
from raysim.tuning.estimates import bytes_of_round, disk_of, with_actors
from raysim.tuning.tables import work
from raysim.tuning.tables.work import DataSize, Pace, Seconds
from tests.cli.test_app import one_line_error, raysim_command  # noqa: F401 - a fixture
from tests.cuda.test_components import settings_of_components

NEEDS = {
    "chain": {"method.methods": {"fedprox": {}, "scaffold": {}}},
    "afl": {"fraction": 1},
    "dp_ftrl": {"aggregation.weighting": "fixed"},
    "error_feedback": {"channel": {"error_feedback": {}, "topk": {}}},
}
"""Settings that a component needs, in addition to its name."""
CASES = {case: given for case, given in settings_of_components().items() if "analysis" not in case}
for key, registry in (("method", METHODS), ("selection", SELECTIONS), ("clock", CLOCKS)):
    CASES |= {f"{key}={name}": {f"{key}.name": name} for name in registry}
CASES = {case: given | NEEDS.get(case.partition("=")[2], {}) for case, given in CASES.items()}


@pytest.mark.parametrize("case", CASES)
def test_each_component_is_explained(raysim_command, tmp_path, case):  # noqa: F811
    words = [f"{key}={json.dumps(value)}" for key, value in CASES[case].items()]
    code, said, err = raysim_command("run", "mnist-noniid", *words, "--explain")
    assert (code, err, [*tmp_path.iterdir()]) == (0, "", [])
    kind, _, name = case.partition("=")
    lines = said.splitlines()
    steps = [line for line in lines if not line.startswith(" ")]
    assert len(steps) <= 9 and len(lines) < 50
    settings = raysim.load_config("mnist-noniid", CASES[case])
    if case in DOING_NOTHING:
        assert not re.search(rf"(?m)^{kind} ", said)
        return
    if kind != "local.optimizer":
        in_words = rf"(?m)^(?:{kind}| ) .*\b{name}(?: \(.+\))?: [A-Z].{{10,}}\.$"
        assert re.search(in_words, said)
    part = getattr(settings, kind, None)
    if isinstance(part, Component):
        formulas = (inspect.getmodule(type(part)).__doc__ or "").splitlines()
        shown = [x for x in formulas if x.startswith("    ") and any(y.endswith(x) for y in lines)]
        assert bool(shown) == any(x.startswith("    ") for x in formulas)


DOING_NOTHING = ("attack=none", "clock=none", "temperature=constant", "aggregation=mean")
DOING_NOTHING += ("server=mean",)
MEAN = "w <- sum_k p_k w_k "


@pytest.mark.parametrize(
    ("given", "times", "there", "absent"),
    [
        ({}, 1, "", "\nserver "),
        ({"method.name": "fedprox"}, 1, "\nserver       mean: ", 'reduction="mean"'),
        (
            {"method.name": "fedprox", "aggregation.name": "krum"},
            0,
            "\naggregation  krum",
            "\nserver",
        ),
        ({"method.name": "fedasync"}, 0, "alpha_t w_k", "\nserver "),
        ({"method.name": "fedbuff"}, 0, "s(tau_k) Delta_k", "\nserver "),
        ({"method.name": "fedat"}, 0, "w_m <-", "\nserver "),
        ({"method.name": "qffl"}, 0, "sum_k h_k", "\nserver "),
        ({"method.name": "powersgd"}, 0, "w <- w + P Q'", "\nserver "),
        ({"method.name": "fedper"}, 1, "v_k the head", "\nserver "),
        ({"method.name": "centralized"}, 0, "as many steps of SGD", " sends "),
        ({"method.name": "fedadam"}, 0, "lr_server * m", "\nserver "),
        ({"server.name": "adam"}, 1, "v <- beta2 * v + (1 - beta2) * Delta^2", "sign(v"),
        ({"server.name": "yogi"}, 1, "sign(v - Delta^2)", "v <- beta2 * v"),
        ({"aggregation.weighting": "fixed"}, 1, "sum_k d_k / M", "sum_k p_k d_k"),
        ({"weighting": "uniform"}, 1, "sends its result, weighting=uniform, as it is", "\nserver "),
        (NEEDS["chain"] | {"method.name": "chain"}, 0, "(g + (c - c_k))", "method.name="),
        (
            {"method.name": "fedfusion", "method.operator": "multi"},
            0,
            "per channel",
            "1x1 convolution",
        ),
        ({"rounds": 1}, 1, "after 1 round,", "1 rounds"),
    ],
)
def test_the_algorithm_that_is_run_is_explained(raysim_command, given, times, there, absent):  # noqa: F811
    words = [f"{key}={json.dumps(value)}" for key, value in given.items()]
    code, said, _ = raysim_command("run", "mnist-noniid", *words, "--explain")
    assert code == 0 and said.count(MEAN) == times
    assert there in said and absent not in said


def test_an_explanation_has_the_settings_of_the_run(raysim_command):  # noqa: F811
    given = ('channel={"clip":{"norm":2}}', "server.name=momentum", "local.momentum=0.5")
    given += ("local.steps=7", "local.epochs=1", "evaluation.every=3", "rounds=12", "fraction=0.2")
    _, said, _ = raysim_command("run", "mnist-noniid", *given, "--explain")
    loop = "local.train=tests.driver.test_own_loop:plain"
    _, own, _ = raysim_command("run", "mnist-noniid", *given, loop, "--explain")
    assert "local steps  The loop tests.driver.test_own_loop:plain, given 7 steps on batches" in own
    for line in (
        "selection    20 of 100 clients a round. uniform: ",
        "local steps  7 steps on batches of 10 samples, sgd at rate 0.1 (momentum=0.5).\n",
        " through one stage:\n             clip (norm=2.0): Scale ",
        "server       momentum (lr=1.0, beta=0.9): Momentum of the server",
        "evaluation   the test set, every 3 rounds.\n",
        "end          after 12 rounds, or at an accuracy of 0.97; seed 0.\n",
    ):
        assert line in said


@pytest.mark.parametrize(
    ("preset", "line"),
    [
        ("fedit-mails", "sent. huggingface (path=minilm, lora.rank=8): Pretrained network"),
        ("ffa-lora-mails", "(path=minilm, lora.rank=8, lora.freeze_a=true): Pretrained network"),
        ("mnist-fedavg", ""),
    ],
)
def test_a_network_with_frozen_weights_is_explained(raysim_command, preset, line):  # noqa: F811
    _, said, _ = raysim_command("run", preset, "--explain")
    found = [text for text in said.splitlines() if text.startswith("model ")]
    assert len(found) == bool(line) and all(line in text for text in found)
    assert ("    y = W x + s B A x " in said) is bool(line)


FILE = """
fraction = 0.5
clients = 8
rounds = {rounds}
[dataset]
name = "tests.blobs:Blobs"
[model]
name = "tests.blobs:Linear"
[partition]
name = "iid"
[method]
name = "fedavg"
[engine]
backend = "inline"
"""
ESTIMATE = r"""time    ([\d.]+ \w+) \(start .+, training .+, evaluation .+, checkpoints .+\)
memory  [\d.]+ [MG]B in this process
disk    ([\d.]+) kB in the run directory
bytes   ([\d.]+ k?B) up and ([\d.]+ k?B) down a round of 4 of 8 clients; ([\d.]+) kB in 30 rounds
from (\d+) rounds measured here, within a factor of two on a machine without other work
no run directory is made
"""


def test_a_dry_run_is_near_the_run_and_writes_nothing(
    raysim_command,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    monkeypatch.setattr(work, "SECONDS", 0.1)
    (tmp_path / "my.toml").write_text(FILE.format(rounds=30))
    code, said, err = raysim_command("run", "my.toml", "--dry-run")
    assert (code, err) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["my.toml"]
    found = re.fullmatch(ESTIMATE, said)
    assert found and int(found[6]) >= 2
    result = raysim.run(raysim.load_config("my.toml", {"out": "run"}))
    row = result.metrics.to_pylist()[-1]
    assert (found[3], found[4]) == (in_fitting_unit(row["bytes_up"], "B"),) * 2
    assert row["bytes_up"] == row["bytes_down"]
    disk = sum(path.stat().st_size for path in result.run_dir.rglob("*") if path.is_file())
    assert disk / 2 < float(found[2]) * 1e3 < disk * 2


def test_a_dry_run_says_what_is_frozen_and_counts_it_once(
    raysim_command,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    monkeypatch.setattr(work, "SECONDS", 0.1)
    monkeypatch.setattr(estimates, "peak_memory", lambda: 1000.0 + 4 * 208)
    monkeypatch.setattr(estimates, "RAY_MEMORY", 0.0)
    text = FILE.format(rounds=30).replace("blobs:Linear", "blobs:FrozenHidden")
    (tmp_path / "my.toml").write_text(text)
    actors = ("engine.backend=ray", "engine.actors=2", "engine.cpus_per_actor=0.5")
    _, alone, _ = raysim_command("run", "my.toml", "--dry-run")
    _, shared, _ = raysim_command("run", "my.toml", *actors, "--dry-run")
    assert "model   51 values, and 208 frozen ones that do not travel\n" in alone
    assert "memory  1.83 kB in this process\n" in alone
    assert "memory  3.83 kB in this process and 2 actors\n" in shared


@pytest.mark.parametrize("flag", ["--dry-run", "--explain"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rounds = ", "my.toml: cannot be read as settings: "),
        (FILE.format(rounds=0), "rounds=0: must be greater than or equal to 1"),
        ("schema = 7\n" + FILE.format(rounds=1), "schema=7 is not 1"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused(
    raysim_command,  # noqa: F811
    tmp_path,
    flag,
    text,
    said,
):
    (tmp_path / "my.toml").write_text(text)
    assert said in one_line_error(raysim_command("run", "my.toml", flag))
    assert [path.name for path in tmp_path.iterdir()] == ["my.toml"]


PARTS = Seconds(start=2.0, training=100.0, evaluation=10.0, checkpoints=1.0)


@pytest.mark.parametrize(
    ("given", "actors", "total"),
    [
        ({"engine.backend": "inline"}, 0, 113),
        ({}, 4, 2 + 6 + 110 / 4 + 1),
        ({"engine.actors": 8}, 8, 2 + 6 + 110 / 4 + 1),  # on four cores
        ({"engine.actors": 3}, 3, 2 + 6 + 110 / 3 + 1),
        ({"fraction": 0.02}, 2, 2 + 6 + 110 / 2 + 1),
    ],
)
def test_actors_share_a_rounds_clients(monkeypatch, given, actors, total):
    monkeypatch.setattr(estimates, "usable_cores", lambda: 4)
    settings = raysim.load_config("mnist-fedavg", given)
    assert estimates.actors_of(settings) == actors
    assert with_actors(PARTS, settings, actors).total == pytest.approx(total)


def test_disk_by_hand():
    """100 clients that all take part: a state of 700 bytes each for rounds 10 to 30."""
    files = {
        **{"checkpoints/round_000001/state": 9_000, "checkpoints/round_000002/state": 1_000},
        **{"model.safetensors": 400, "model_best.safetensors": 500, "events.out.1": 60},
        **{f"clients/0/{client}/1_0.safetensors": 700 for client in range(6)},
    }
    pace = Pace(1.0, 1.0, rows=[{"clients": 3}] * 2, files=files)
    settings = raysim.load_config("mnist-fedavg", {"rounds": 30, "fraction": 1.0})
    size = DataSize(np.full(100, 600), 10_000, are_listed=True)
    expected = 2 * (1_000 + 48 * 100) + 400 + 500 + 30 * 30 + 24 * 100 * 30
    expected += 700 * (100 + 100 * 20) + 8 * 60_000
    assert disk_of(settings, pace, size) == pytest.approx(expected)
    few = settings.override({"checkpoint_every": 30, "rounds": 1, "keep_clients": True})
    expected = 1_000 + 48 * 100 + 400 * 101 + 500 + 30 + 24 * 100 + 700 * 100 + 8 * 60_000
    assert disk_of(few, pace, size) == pytest.approx(expected)


@pytest.mark.parametrize(("rounds", "fraction"), [(10, 1.0), (10, 0.5), (30, 1.0), (37, 0.5)])
def test_the_disk_has_as_many_states_as_a_run_keeps(tmp_path, rounds, fraction):
    given = {"rounds": rounds, "fraction": fraction, "method.name": "ditto"}
    (tmp_path / "my.toml").write_text(FILE.format(rounds=30))
    settings = raysim.load_config(tmp_path / "my.toml", given | {"out": str(tmp_path / "run")})
    found = [*raysim.run(settings).run_dir.glob("clients/**/*.safetensors")]
    states = {f"clients/{path.name}": 1_000_000 for path in found}
    pace, size = Pace(1.0, 1.0, rows=[{}], files=states), DataSize(np.full(8, 4), 0)
    estimate = disk_of(settings, pace, size) / 1e6
    assert estimate == pytest.approx(len(found), rel=0.15)


@pytest.mark.parametrize("method", ["fedavg", "fedbuff", "fedat", "fedasync"])
def test_bytes_are_those_of_the_rounds_whose_first_ones_are_measured(tmp_path, method):
    (tmp_path / "my.toml").write_text(FILE.format(rounds=12))
    given = {"method.name": method, "out": str(tmp_path / "run")}
    given |= {"method.tiers": 2} if method == "fedat" else {}
    settings = raysim.load_config(tmp_path / "my.toml", given)
    rows = raysim.run(settings).metrics.to_pylist()
    for column in ("bytes_up", "bytes_down"):
        measured = Pace(1.0, 1.0, rows=rows[:3])
        mean = sum(row[column] for row in rows) / len(rows)
        assert 0.5 * mean < bytes_of_round(settings, measured, column) < 1.6 * mean


def contents(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


class Stop(raysim.Listener):
    """Ends a run after three rounds."""

    def round_done(self, row):
        if row["round"] == 3:
            raise KeyboardInterrupt


def damage(run):
    for path in run.glob("checkpoints/*/*"):
        path.write_bytes(b"?")


def of_another(run):
    config = run / "config.json"
    config.write_text(config.read_text().replace('"seed": 0', '"seed": 9'))
    shutil.rmtree(run / "checkpoints")


@pytest.mark.parametrize(
    ("change", "said", "as_started"),
    [
        (lambda run: None, "holds an unfinished run after round 3 of 30: raysim resume run", False),
        (damage, "every checkpoint is damaged; restore the files", True),
        (lambda run: (run / "config.json").write_text("{"), "unfinished run after round 3", False),
        (of_another, "holds a run with seed=9 (here 0); choose another `out`", True),
        (lambda run: [shutil.rmtree(run), run.mkdir(), (run / "a").touch()], "holds no run", True),
        (lambda run: [shutil.rmtree(run), run.touch()], "is not a folder", True),
    ],
)
def test_a_dry_run_ends_as_the_start_by_what_out_holds(
    raysim_command,  # noqa: F811
    tmp_path,
    change,
    said,
    as_started,
):
    (tmp_path / "my.toml").write_text(FILE.format(rounds=30))
    with suppress(KeyboardInterrupt):
        raysim.run(raysim.load_config("my.toml", {"out": "run"}), listener=Stop())
    change(tmp_path / "run")
    before = contents(tmp_path)
    line = one_line_error(raysim_command("run", "my.toml", "out=run", "--dry-run"))
    assert said in line and contents(tmp_path) == before
    if as_started:
        assert raysim_command("run", "my.toml", "out=run")[2].endswith(line)


def test_a_dry_run_of_a_finished_run_has_nothing_left(raysim_command, tmp_path):  # noqa: F811
    (tmp_path / "my.toml").write_text(FILE.format(rounds=2))
    raysim.run(raysim.load_config("my.toml", {"out": "run"}))
    code, said, err = raysim_command("run", "my.toml", "out=run", "--dry-run")
    line = "run: the run is finished (2 of at most 2 rounds); nothing is left to do\n"
    assert (code, said, err) == (0, line, "")


def test_a_failing_client_ends_a_dry_run_without_advice(raysim_command, tmp_path):  # noqa: F811
    (tmp_path / "my.toml").write_text(FILE.format(rounds=30))
    line = one_line_error(raysim_command("run", "my.toml", "local.lr=1e30", "--dry-run"))
    assert line.startswith("raysim: client ")
    assert "resume" not in line and "errors.log" not in line
