"""The command line as a user meets it: what it prints, its exit codes, what it leaves behind."""

from __future__ import annotations

import json
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import ray

from raysim.cli.app import KINDS, main
from raysim.workloads.datasets.fetch import data_root

QUICK = ("rounds=1", "local.epochs=1", "fraction=0.02", "engine.backend=inline")


@pytest.fixture
def raysim_command(monkeypatch, capsys, tmp_path):
    """Run `raysim ...` in a fresh working directory; return exit code, stdout and stderr."""
    monkeypatch.setenv("RAYSIM_DATA", str(data_root()))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["raysim", *arguments])
        try:
            main()
            code: Any = 0
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return int(code), captured.out, captured.err

    return run


def one_line_error(result: tuple[int, str, str]) -> str:
    code, _, err = result
    assert code == 2
    assert err.endswith("\n") and err.count("\n") == 1, err
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("fracton=0.1", r"fracton: no such setting; did you mean 'fraction'?"),
        ("local.lrr=0.1", r"local.lrr: no such setting; did you mean 'local.lr'?"),
        ("dataset.normalized=true", "no such setting; did you mean 'dataset.normalised'?"),
        ("lr=0.1", "lr: no such setting; did you mean 'local.lr'?"),
        ("batch_size=5", "batch_size: no such setting; did you mean 'local.batch_size'?"),
        ("normalised=true", "normalised: no such setting; did you mean 'dataset.normalised'?"),
        ("method=scaffold", "must be the name of a method; did you mean method.name=scaffold?"),
        ("seed=0,1", "; runs of several values: raysim sweep CONFIG seed=0,1"),
        ("local.lr=0.1,0.2", "; runs of several values: raysim sweep CONFIG local.lr=0.1,0.2"),
        ("method.name=fedavg,fedprox", "; runs of several values: raysim sweep CONFIG method.name"),
        (
            "--local.lr=5",
            "No such option: --local.lr; a setting is written local.lr=VALUE. Given: ",
        ),
        ("seeds=3", "seeds: no such setting; three seeds are seed=0..2 in raysim sweep"),
        ("--seeds=3", "No such option: --seeds; three seeds are seed=0..2 in raysim sweep, "),
        ("rounds=many", 'rounds="many": must be a valid integer'),
        ("fraction=0", "fraction=0: must be greater than 0"),
        ("fraction=1.5", "fraction=1.5: must be less than or equal to 1"),
        ("rounds=0", "rounds=0: must be greater than or equal to 1"),
        ("local.batch_size=0", "local.batch_size=0: must be greater than or equal to 1 or 'full'"),
        ("local.temperature=0", "local.temperature=0: must be greater than 0"),
        ("clients=70000", "clients=70000: the dataset has 60000 training samples"),
        ("dataset.name=mnits", "dataset.name=mnits: no such dataset; did you mean 'mnist'?"),
        ("method.name=nowhere:Method", "method.name=nowhere:Method: cannot be imported"),
        ("out=/proc/raysim", "out=/proc/raysim: /proc is not a folder that can be written"),
        ("engine.gpus_per_actor=64", "engine.gpus_per_actor=64: must be less than or equal to 1"),
    ],
)
def test_bad_settings_stop_before_anything_starts(raysim_command, tmp_path, override, said):
    error = one_line_error(raysim_command("run", "mnist-fedavg", *QUICK, override))
    assert said in error
    assert list(tmp_path.iterdir()) == []


def test_negative_mu(raysim_command):
    result = raysim_command("run", "mnist-fedavg", "method.mu=-1", "method.name=fedprox")
    assert "method.mu=-1: must be greater than or equal to 0" in one_line_error(result)


def test_unknown_preset_names_the_nearest(raysim_command):
    error = one_line_error(raysim_command("run", "mnist-fedvag"))
    assert "mnist-fedvag: no such preset; did you mean 'mnist-fedavg'?" in error


def test_more_actors_than_the_cluster_has_gpus_for(raysim_command, shared_ray, tmp_path):
    overrides = ("engine.gpus_per_actor=1", "engine.actors=3", "engine.backend=ray", "out=run")
    overrides += ("fraction=0.03",)
    error = one_line_error(raysim_command("run", "mnist-fedavg", *QUICK, *overrides))
    assert "engine.actors=3: at most 2 with engine.gpus_per_actor=1" in error
    assert list(tmp_path.iterdir()) == []


def test_cluster_that_cannot_be_joined(raysim_command, monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # other tests of a process use Ray
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    error = one_line_error(raysim_command("run", "mnist-fedavg", "out=run"))
    assert "RAY_ADDRESS=127.0.0.1:1: cannot be joined" in error and "refused" in error
    assert list(tmp_path.iterdir()) == []


def test_damaged_data_file_is_named(raysim_command, monkeypatch, tmp_path):
    good, root = data_root(), tmp_path / "data"
    shutil.copytree(good / "mnist", root / "mnist", ignore=shutil.ignore_patterns("prepared"))
    damaged = root / "mnist/t10k-labels-idx1-ubyte"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\0")
    monkeypatch.setenv("RAYSIM_DATA", str(root))
    error = one_line_error(raysim_command("run", "mnist-fedavg", *QUICK, "out=run"))
    assert str(damaged) in error and "md5" in error
    assert not (tmp_path / "run").exists()
    shutil.copy(good / "mnist/t10k-labels-idx1-ubyte", damaged)
    assert raysim_command("run", "mnist-fedavg", *QUICK, "out=run")[0] == 0


def test_damaged_prepared_file_is_named(raysim_command, monkeypatch, tmp_path):
    root = tmp_path / "data"
    shutil.copytree(data_root() / "mnist", root / "mnist")
    damaged = root / "mnist/prepared/test.arrow"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    monkeypatch.setenv("RAYSIM_DATA", str(root))
    error = one_line_error(raysim_command("run", "mnist-fedavg", *QUICK, "out=run"))
    assert str(damaged) in error and "delete" in error
    damaged.unlink()
    assert raysim_command("run", "mnist-fedavg", *QUICK, "out=run")[0] == 0


def test_client_without_samples_is_named(raysim_command, monkeypatch, tmp_path):
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "hungry.py").write_text(
        "import numpy as np, raysim\n"
        "class Hungry(raysim.Partition):\n"
        "    def split(self, data, clients, seed):\n"
        "        parts = np.array_split(np.arange(len(data)), clients)\n"
        "        return raysim.ListedIndices.of([*parts[:3], parts[3][:0], *parts[4:]])\n"
    )
    monkeypatch.syspath_prepend(folder)
    result = raysim_command("run", "mnist-fedavg", *QUICK, "partition.name=hungry:Hungry")
    assert "client 3 has no samples" in one_line_error(result)


def test_update_that_is_not_finite_stops_the_run_and_keeps_what_was_done(raysim_command):
    overrides = ("local.lr=3e38", "out=run", "seed=1")
    error = one_line_error(raysim_command("run", "mnist-fedavg", *QUICK, *overrides))
    assert "client" in error and "not finite (tensor" in error and "local.lr" in error


def test_a_finished_run_is_left_as_it_is(raysim_command, tmp_path):
    code, out, _ = raysim_command("run", "mnist-fedavg", *QUICK, "out=run")
    assert code == 0
    assert "round 1  accuracy" in out and "rounds to 97.0%: not reached\n" in out
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    for words in (("run", "mnist-fedavg", *QUICK, "out=run"), ("resume", "run")):
        code, said, err = raysim_command(*words)
        assert (code, err) == (0, "")
        assert "run: the run is finished (1 of at most 1 rounds); nothing is left to do\n" in said
        assert "accuracy " in said and "round 1 " not in said
    other = one_line_error(raysim_command("run", "mnist-fedavg", *QUICK, "out=run", "seed=5"))
    assert "seed=0 (here 5)" in other
    assert before == {p: p.read_bytes() for p in Path("run").rglob("*") if p.is_file()}


def test_more_rounds_are_refused_to_run_and_taken_by_resume(raysim_command, tmp_path):
    quick = [word for word in QUICK if not word.startswith("rounds=")]
    assert raysim_command("run", "mnist-fedavg", *quick, "rounds=1", "out=ext")[0] == 0
    more = raysim_command("run", "mnist-fedavg", *quick, "rounds=2", "out=ext")
    expected = (
        "out=ext: holds a run with rounds=1 (here 2); to train it further, type: raysim resume ext"
    )
    assert expected in one_line_error(more)
    code, said, _ = raysim_command("resume", "ext", "rounds=2")
    assert code == 0 and "round 2 " in said and "round 1 " not in said
    code, said, _ = raysim_command("resume", "ext")
    assert code == 0 and "the run is finished (2 of at most 2 rounds)" in said
    assert "rounds=1: must be at least 2" in one_line_error(
        raysim_command("resume", "ext", "rounds=1")
    )
    error = one_line_error(raysim_command("resume", "ext", "rounds=3", "seed=4"))
    assert "ext: is a run with seed=0 (here 4), which cannot change when it is resumed" in error
    advice = error.split("type: raysim ")[1].split()
    assert advice == ["run", "ext/config.json", "rounds=3", "seed=4", "out=none"]
    code, said, _ = raysim_command(*advice)
    assert code == 0 and "round 3 " in said


def test_published_figures_stand_beside_the_same_experiment_only(raysim_command):
    overrides = ("rounds=1", "engine.backend=inline")
    same = raysim_command("run", "mnist-fedavg", *overrides, "seed=3")[1]
    assert "rounds to 97.0%: not reached (published 47)" in same
    other = raysim_command("run", "mnist-fedavg", *overrides, "local.epochs=1")[1]
    assert "published" not in other


@pytest.mark.parametrize(
    ("folder", "said"), [("nowhere", "there is no such folder"), (".", "there is no config.json")]
)
def test_resume_of_nothing(raysim_command, folder, said):
    assert f"holds no run: {said}\n" in one_line_error(raysim_command("resume", folder))


def test_file_of_settings(raysim_command, tmp_path):
    assert raysim_command("run", "mnist-fedavg", *QUICK, "out=first")[0] == 0
    assert raysim_command("run", "first/config.json", "out=second")[0] == 0
    first, second = (Path(name, "model.safetensors").read_bytes() for name in ("first", "second"))
    assert first == second
    # The file says `out`, too.
    code, again, _ = raysim_command("run", "first/config.json")
    assert code == 0 and "first: the run is finished" in again


def test_a_file_of_a_sweep_is_no_run(raysim_command, tmp_path):
    (tmp_path / "own.toml").write_text("preset = 'beside.toml'\naxes = {'local.lr' = [1, 2]}\n")
    error = one_line_error(raysim_command("run", "own.toml"))
    assert error == "raysim: own.toml: is a file of a sweep; type: raysim sweep own.toml\n"


def test_default_out_is_named_after_the_preset(raysim_command, tmp_path):
    assert raysim_command("run", "mnist-fedavg", *QUICK)[0] == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("mnist-fedavg-")
    assert (folder / "summary.json").exists()


@pytest.mark.parametrize(
    "kind", ["methods", "presets", "datasets", "partitions", "models", "clocks"]
)
def test_list(raysim_command, kind):
    code, out, _ = raysim_command("list", kind)
    known = {
        "methods": "scaffold",
        "presets": "mnist-million",
        "datasets": "fashion-mnist",
        "partitions": "dirichlet",
        "models": "mnist-cnn-128",
        "clocks": "devices",
    }
    assert code == 0 and known[kind] in out
    code, out, _ = raysim_command("list", kind, known[kind])
    assert code == 0 and len(out.splitlines()) > 5


def test_a_page_is_reflowed_but_for_its_formulas(raysim_command):
    _, out, _ = raysim_command("list", "methods", "mifl")
    lines = out.splitlines()
    prose = [line for line in lines if line.startswith("The gradient is propagated back")]
    assert prose and len(prose[0].rstrip()) > 65  # of a terminal's 80 columns
    assert any(line.startswith("    c_v = std(l_g, l_k) / (l_g + l_k)") for line in lines)
    words = " ".join(out.split())
    assert "At a client's first participation it has no F_k and does plain FedAvg." in words


def test_list_everything_and_unknown_kind(raysim_command):
    code, out, _ = raysim_command("list")
    assert code == 0 and len(out.splitlines()) <= 24  # a screen
    for kind in KINDS:
        assert sum(line.split()[:1] == [kind] for line in out.splitlines()) == 1
    assert "did you mean 'methods'?" in one_line_error(raysim_command("list", "methds"))


def test_list_runs(raysim_command, tmp_path):
    """Finished, stopped and damaged ones, below any folder; those of a sweep, too."""
    assert raysim_command("run", "mnist-fedavg", *QUICK, "out=runs/a")[0] == 0
    assert raysim_command("run", "mnist-fedavg", *QUICK, "seed=1", "out=runs/deep/b")[0] == 0
    (tmp_path / "runs/deep/b/summary.json").unlink()
    (tmp_path / "runs/c").mkdir()
    (tmp_path / "runs/c/config.json").write_text("no JSON")
    code, out, _ = raysim_command("list", "runs")
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip().startswith("runs/")}
    assert code == 0 and {*lines} == {"runs/a", "runs/deep/b", "runs/c"}
    accuracy = json.loads((tmp_path / "runs/a/summary.json").read_text())["final_accuracy"]
    told = f"fedavg mnist 0 1/1 finished {100 * accuracy:.2f}%"
    assert told in " ".join(lines["runs/a"].split())
    assert "interrupted" in lines["runs/deep/b"] and "damaged" in lines["runs/c"]
    code, out, _ = raysim_command("list", "runs", "runs/deep")
    assert code == 0 and "runs/a" not in out and "runs/deep/b" in out
    (tmp_path / "empty").mkdir()
    assert "none" in raysim_command("list", "runs", "empty")[1]
    error = one_line_error(raysim_command("list", "runs", "nothing"))
    assert "nothing: no such folder; type: raysim list runs FOLDER" in error


def test_data_list_and_fetch(raysim_command):
    code, out, _ = raysim_command("data", "fetch", "mnist")
    assert code == 0 and "mnist train: " in out
    code, out, _ = raysim_command("data", "list")
    assert code == 0 and str(data_root()) in out.replace("\n", "")
    assert "did you mean" in one_line_error(raysim_command("data", "fetch", "mnst"))


def test_data_show(raysim_command, tmp_path):
    code, out, _ = raysim_command("data", "show", "mnist-noniid", "seed=1", "--out", "shares.png")
    assert code == 0
    assert "mnist, shards (per_client=2, size=300), clients=100, seed=1\n" in out
    assert ["samples", *["600"] * 5] in [line.split() for line in out.splitlines()]
    assert "60000 samples held; the training set has 60000 samples\n" in out
    assert out.endswith("heat map: shares.png\n")
    assert (tmp_path / "shares.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert [path.name for path in tmp_path.iterdir()] == ["shares.png"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mnist-nonid"], "mnist-nonid: no such preset; did you mean 'mnist-noniid'?"),
        (["mnist-fedavg", "partition.name=by_key"], "partition.key=writer: no such column"),
        (["mnist-fedavg", "partition.name=split_classes"], "clients=100: 10 classes cannot be"),
        (["mnist-fedavg", "--out", "a.pdf"], "--out=a.pdf: must be a .png file in an existing"),
    ],
)
def test_data_show_refuses_in_one_line(raysim_command, arguments, said):
    assert said in one_line_error(raysim_command("data", "show", *arguments))


def test_studies_are_listed(raysim_command):
    code, out, _ = raysim_command("list", "studies", "dnc-split")
    assert code == 0 and "method.finetune_epochs  1 to 8" in out
    code, out, _ = raysim_command("list", "studies")
    assert code == 0 and "fedmax-beta" in out and "temperature" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["fedprox-mux"],
            "fedprox-mux: no such study; did you mean 'fedprox-mu'? (or a .toml or .json file)",
        ),
        (
            ["fedprox-mu", "--sampler", "best"],
            "sampler=best: must be one of tpe, random, grid, gp, cma-es, qmc, nsga2",
        ),
        (["fedprox-mu", "local.lr=-1"], "local.lr=-1: must be greater than 0"),
        (
            ["fedprox-mu", "--pruner", "median", "--objectives", "accuracy,bytes"],
            "pruner=median: pruners judge the objective accuracy alone, but got accuracy,bytes; use"
            " pruner none",
        ),
    ],
)
def test_a_study_that_cannot_be_starts_nothing(raysim_command, tmp_path, words, message):
    code, _, err = raysim_command("tune", *words)
    assert (code, err) == (2, f"raysim: {message}\n")
    assert not list(tmp_path.iterdir())


def test_stages_are_listed_with_their_bytes_of_a_preset_s_model(raysim_command):
    """1,993 of 199,210 values, each with 18 bits of place; or 1 bit a value, a scale a tensor."""
    _, out, _ = raysim_command("list", "stages", "--of", "mnist-fedavg", "--json")
    rows = json.loads(out)["stages"]
    sent = {row["name"]: row["bytes_up"] for row in rows}
    down = {row["name"]: row["bytes_down"] for row in rows}
    assert (sent["none"], sent["clip"]) == (796840, 796840)
    assert sent["topk"] == 4 * 1993 + 4485
    assert sent["sign"] == down["sign"] == 24902 + 24
    assert (down["none"], down["clip"]) == (796840, None)
    assert rows[0]["of_the_model"] == 1
    _, out, _ = raysim_command("list", "stages", "--of", "mnist-fedavg")
    (clip,) = (line.split() for line in out.splitlines() if line.split()[:1] == ["clip"])
    assert clip[1:5] == ["norm=1.0", "796840", "-", "100.00%"]
    assert {row["name"]: row["settings"] for row in rows}["masks"].startswith("neighbours=none ")
    code, _, err = raysim_command("list", "methods", "--of", "mnist-fedavg")
    assert code == 2 and err.strip().endswith("raysim list stages --of mnist-fedavg")


@pytest.mark.parametrize("name", ["app", "data", "export", "figures", "jobs", "results", "tables"])
def test_names_of_classes_are_not_printed_as_pictures(name):
    """`:One:` is an emoji of rich's markup, and may be part of `package.module:One`."""
    shown = import_module(f"raysim.cli.{name}").console.render_str("method.name=mine:One: 3 rounds")
    assert shown.plain == "method.name=mine:One: 3 rounds"
