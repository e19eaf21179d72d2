"""Plots, page and artifacts of a study."""

from __future__ import annotations

import logging
import re

import optuna
import pytest
from optuna.artifacts import get_all_artifact_meta
from safetensors.numpy import load_file

from raysim.errors import MachineError
from raysim.tuning import report
from raysim.tuning.plots import parts_of_powers, plots
from raysim.tuning.search.results import best
from raysim.tuning.studies import STUDIES
from raysim.tuning.studies.samplers import SearchOptions
from tests.browser import problems
from tests.tuning.common import make_search, make_study, make_tuner

ONE = {"history", "curves", "slice", "edf"}
PAIRED = {"importance", "contour", "parallel"}
WIDE = {
    "local.lr": {"low": 1e-3, "high": 0.5, "log": True},
    "local.weight_decay": {"low": 1e-6, "high": 1e-2, "log": True},
    "local.momentum": {"low": 0.0, "high": 0.95},
}


def complete(search, accuracies, error=None):
    """Run trials of given accuracies; one fails with an error."""
    for accuracy in accuracies:
        trial = search.ask()
        search.decisions.judge(trial, {1: accuracy / 2, 2: accuracy})
        sent = int(1e6 * accuracy)
        summary = {"final_holdout_accuracy": accuracy, "bytes_up": sent, "bytes_down": sent}
        search.tell(
            trial, {**summary, "final_loss": 1.0, "final_accuracy": accuracy - 0.25, "seconds": 2.5}
        )
    if error:
        search.fail(search.ask(), error)


def names(search):
    with plots(search.study, search.options) as found:
        return set(found)


def test_plots_of_what_there_is(tmp_path):
    search = make_search(tmp_path, SearchOptions("random"))
    assert names(search) == set()
    complete(search, [0.5])
    assert names(search) == ONE
    complete(search, [0.7, 0.6])
    assert names(search) == ONE | PAIRED
    (tmp_path / "line").mkdir()
    line = make_search(tmp_path / "line", SearchOptions("random"), **{"method.mu": 0.1})
    complete(line, [0.5, 0.7])
    assert names(line) == ONE | {"importance"}
    (tmp_path / "two").mkdir()
    two = make_search(tmp_path / "two", SearchOptions("random", objectives=("accuracy", "bytes")))
    complete(two, [0.5, 0.7])
    assert names(two) == {"pareto", "slice", "edf"} | PAIRED


def test_the_page_has_trials_plots_and_what_was_searched(tmp_path):
    options = SearchOptions("random", constraints={"bytes": 1.3e6})
    search = make_search(tmp_path, options)
    complete(search, [0.5, 0.7, 0.6], error="<b>broken</b>")
    files = report.write_report(search, best(search.study), tmp_path)
    assert {path.stem for path in files} == {*ONE, *PAIRED, "report"}
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in files[:-1])
    text = files[-1].read_text()
    rows = re.findall(r"<tr>(.*?)</tr>", text[: text.index('<section id="space">')])
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows if "<td" in row]
    ends = [["50.00%", "25.00%", "1 MB", "2.5", "complete"]]
    ends += [["70.00%", "45.00%", "1.4 MB", "2.5", "complete, too many bytes"]]
    ends += [["60.00%", "35.00%", "1.2 MB", "2.5", "complete"]]
    ends += [["", "", "", "", "fail: &lt;b&gt;broken&lt;/b&gt;"]]
    assert [row[3:] for row in cells] == [ends[2], *ends]  # the best trial, then all
    assert [row[0] for row in cells] == ["2", "0", "1", "2", "3"]
    assert text.count("<svg") == len(files) - 1 and "http" not in re.sub(
        r'xmlns\S*="[^"]*"', "", text
    )
    assert "<dt>constraints</dt><dd>bytes at most 1.3e+06</dd>" in text
    first = text[text.index("<h1>") : text.index('<section id="best">')]
    assert '<p class="won">Trial 2 is best: ' in first and "<svg" in first
    assert "Its held-out accuracy is 60.00%; trial 0, the next one, has 50.00%." in first
    assert "It was chosen among 3 complete trials" in first and "no test compares trials" in first
    space = text[text.index('<section id="space">') : text.index("<details>")]
    assert "<td>local.lr</td><td>0.001 to 0.5, log</td><td>always</td>" in space
    assert "<td>method.mu</td><td>0.0 | 0.1 | 1.0</td>" in space
    assert "<dd>held-out accuracy, the largest</dd>" in space
    assert "<dd>3 complete, 1 fail</dd>" in space
    words = re.findall(r"<dd>(.*?)</dd>", text)
    assert len(words) > 20 and not [word for word in words if re.search(r"[{}\[\]]|null", word)]
    shown = re.findall(r"<text[^>]*>([^<]*)</text>", text)
    assert {"held-out accuracy [%]", "60.0", "60.0%", "round"} <= {*shown}  # units of the table
    assert {"trial 0", "share of trials"} <= {*shown} and not {"1.5", "Trial", "Trial0"} & {*shown}
    again = report.write_report(search, best(search.study), tmp_path)
    assert again[-1].read_text() == text


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(1e-3, 1.0, (1,)), (0.05, 0.5, (1, 3)), (0.02, 0.08, (1, 2, 5)), (0.6, 0.9, ())],
)
def test_a_log_axis_has_two_ticks(low, high, ticks):
    assert parts_of_powers(low, high) == ticks


def test_a_tuner_killed_between_constraint_and_value_sets_the_constraint_once(tmp_path):
    search = make_search(tmp_path, SearchOptions("random", constraints={"seconds": 2}))
    search.ask().set_constraint("seconds", 0.5)
    (trial,) = search.take_over()
    summary = {"final_holdout_accuracy": 0.5, "bytes_up": 1, "bytes_down": 1, "seconds": 2.5}
    assert search.tell(trial, summary).constraints == {"seconds": 0.5}  # Optuna warns of a second


def test_optunas_dashboard_has_the_names_of_the_objectives(tmp_path):
    options = SearchOptions("random", objectives=("loss", "bytes"))
    search = make_search(tmp_path, options)
    search.claim()
    url = f"sqlite:///{tmp_path / 'study.db'}"
    study = optuna.load_study(study_name="blobs", storage=url)
    assert study.metric_names == ["held-out loss", "bytes sent both ways"]


def test_the_most_important_settings_are_drawn_against_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr("raysim.tuning.plots.MOST_PAIRED", 1)
    search = make_search(tmp_path, SearchOptions("random"))
    complete(search, [0.5, 0.7, 0.6])
    assert names(search) == ONE | {"importance"}


def test_no_trial_is_best_where_none_keeps_the_constraints(tmp_path):
    search = make_search(tmp_path, SearchOptions("random", constraints={"seconds": 2}))
    complete(search, [0.5, 0.7])
    assert best(search.study) == []
    assert report.best_trials(search, []).rows == ()


def test_plots_without_evaluations_or_a_feasible_trial_print_nothing(tmp_path, caplog):
    logger = logging.getLogger("optuna")
    logger.addHandler(caplog.handler)
    try:
        for objectives, drawn in (("bytes",), {"history"}), (("accuracy", "bytes"), {"pareto"}):
            (folder := tmp_path / objectives[0]).mkdir()
            options = SearchOptions("random", objectives=objectives, constraints={"bytes": 1.0})
            search = make_search(folder, options)
            complete(search, [0.5])
            assert names(search) == drawn | {"slice", "edf"}
    finally:
        logger.removeHandler(caplog.handler)
    assert not caplog.records and optuna.logging.get_verbosity() == optuna.logging.WARNING


def test_four_objectives_have_all_but_the_plot_of_their_front(tmp_path, local_slots, tune):
    four = "accuracy,bytes,virtual_seconds,virtual_joules"
    quick = ["rounds=1", "method.mu=0.1", "clock.name=devices", "--sampler", "random"]
    code, out, err = tune("--trials", "2", "--objectives", four, *quick)
    assert (code, err) == (0, ""), err
    drawn = re.findall(r"plot: out/(\w+).png", out)
    assert drawn == ["slice", "edf", "importance"] and "page: out/report.html" in out
    assert "note: no plot of the Pareto front, which is drawn of at most 3 objectives" in out
    assert "Pareto front\n" in out and "raysim run out/best-000" in out


@pytest.mark.ci
def test_nothing_is_wrong_with_the_page_in_a_browser(tmp_path):
    """No label lies on another one, also of settings by powers of ten; the colour bar has room."""
    search = make_search(tmp_path, SearchOptions("random"), table={"space": WIDE})
    complete(search, [0.5, 0.7])
    with plots(search.study, search.options) as figures:
        figures["slice"].draw_without_rendering()
        *panels, bar = (axes.get_position() for axes in figures["slice"].axes)
        assert len(panels) == len(WIDE) and not any(map(bar.overlaps, panels))
    *_, path = report.write_report(search, best(search.study), tmp_path)
    assert problems([path.as_uri()]) == {}


def test_models_and_plots_are_artifacts_once(tmp_path, local_slots, tune, monkeypatch):
    monkeypatch.setattr("raysim.tuning.plots.MOST_PAIRED", 1)  # without the slowest plots
    quick = ["rounds=1", "--sampler", "random", "--pruner", "none"]
    for trials in ("1", "2"):
        code, out, err = tune("--trials", trials, *quick)
        assert (code, err) == (0, ""), err
    assert "page: out/report.html" in out
    store = tmp_path / "out" / "artifacts"
    search = make_search(tmp_path, storage=f"sqlite:///{tmp_path / 'out' / 'study.db'}")
    attached = {meta.filename: meta.artifact_id for meta in get_all_artifact_meta(search.study)}
    assert {*attached} == {f"{name}.png" for name in ONE} | {"importance.png", "report.html"}
    for name, artifact in attached.items():
        assert (store / artifact).read_bytes() == (tmp_path / "out" / name).read_bytes()
    for trial in search.study.get_trials():
        (meta,) = get_all_artifact_meta(trial, storage=search.study._storage)
        run = tmp_path / "out" / "trials" / f"{trial.number:04d}" / "model.safetensors"
        assert meta.filename == run.name
        assert (store / meta.artifact_id).samefile(run)  # a link takes no space
        assert load_file(store / meta.artifact_id)
    assert len([*store.iterdir()]) == len(attached) + 2


def test_the_terminal_says_which_trials_take_too_much(tmp_path, local_slots, tune, monkeypatch):
    study = make_study(tmp_path, constraints={"bytes": 1}, sampler="random", trials=1)
    monkeypatch.setitem(STUDIES, "blobs", study)
    code, out, err = tune("rounds=1")
    assert (code, err) == (0, "") and "no completed trial keeps the constraints" in out
    assert re.search(r"trial 0 complete: [0-9.]+, too many bytes  ", out)


def test_an_artifact_on_another_disk_is_a_copy(tmp_path, local_slots, monkeypatch):
    def refuse(*paths):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    search = make_search(tmp_path, SearchOptions("random"), rounds=1)
    make_tuner(search, tmp_path).run(1, 1)
    (artifact,) = (tmp_path / "artifacts").iterdir()
    (run,) = (tmp_path / "out" / "trials").glob("*/model.safetensors")
    assert artifact.read_bytes() == run.read_bytes() and not artifact.samefile(run)


def test_artifacts_that_cannot_be_written(tmp_path, local_slots):
    (tmp_path / "artifacts").write_text("in the way")
    search = make_search(tmp_path, SearchOptions("random"), rounds=1)
    with pytest.raises(MachineError, match=r"artifacts: cannot be written: .*resume"):
        make_tuner(search, tmp_path).run(1, 1)


def test_each_axis_of_the_parallel_plot_has_the_name_of_its_setting(tmp_path):
    """Also where importance has another order than the alphabet."""
    search = make_search(tmp_path, SearchOptions("random"), table={"space": WIDE})
    for _ in range(12):
        trial = search.ask()
        accuracy = trial.params["local.weight_decay"] * 50
        search.decisions.judge(trial, {1: accuracy})
        summary = {"final_holdout_accuracy": accuracy, "final_accuracy": accuracy, "seconds": 1.0}
        search.tell(trial, {**summary, "bytes_up": 1, "bytes_down": 1})
    ranked = [*optuna.importance.get_param_importances(search.study)]
    assert ranked != sorted(ranked)
    with plots(search.study, search.options) as found:
        axes = found["parallel"].axes
        named = [label.get_text().replace("\n", "") for label in axes[0].get_xticklabels()][1:]
        own = [each for each in axes[1:] if each.get_ylabel() == ""][-len(named) :]
        for name, axis in zip(named, own, strict=True):
            values = [trial.params[name] for trial in search.study.trials]
            assert axis.get_ylim() == pytest.approx((min(values), max(values))), name
