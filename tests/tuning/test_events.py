"""Contents of a study's folder, as TensorBoard's own HPARAMS code reads them."""

from __future__ import annotations

from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.data.provider import ListHyperparametersResult
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams.api_pb2 import Experiment, ListSessionGroupsRequest, SessionGroup
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.list_session_groups import Handler

from raysim.tuning.studies.samplers import SearchOptions
from tests.tuning.common import make_search, make_tuner


def hparams_tab(folder):
    """Return what the tab is about, and its rows by name of the run."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(folder))
    multiplexer.Reload()
    context = Context(TBContext(data_provider=MultiplexerDataProvider(multiplexer, str(folder))))
    request_context = RequestContext()
    found = context.hparams_metadata(request_context, "")
    nothing = ListHyperparametersResult(hyperparameters=[], session_groups=[])
    experiment: Experiment = context.experiment_from_metadata(
        request_context, "", True, found, nothing
    )
    request = ListSessionGroupsRequest(slice_size=100, allowed_statuses=[0, 1, 2, 3])
    groups = Handler(request_context, context, "", request).run().session_groups
    return experiment, {group.name: group for group in groups}


def setting(group: SessionGroup, key: str) -> float:
    return group.hparams[key].number_value


def test_the_tab_has_the_accuracy_beside_other_objectives(tmp_path, local_slots):
    search = make_search(tmp_path, SearchOptions(objectives=("bytes",), sampler="random"), rounds=1)
    make_tuner(search, tmp_path).run(1, 1)
    experiment, _ = hparams_tab(tmp_path / "out")
    metrics = [info.name.tag for info in experiment.metric_infos]
    assert metrics == ["holdout/accuracy", "bytes/total"]


def test_the_tab_compares_trials_by_what_was_tried_and_found(tmp_path, local_slots):
    search = make_search(
        tmp_path, SearchOptions(objectives=("accuracy", "bytes"), sampler="random")
    )
    for trials in (1, 3):  # a study that goes on describes itself again
        result = make_tuner(search, tmp_path).run(trials, 1)
    assert set(result.presets) == {trial.number for trial in search.study.best_trials}
    assert len(list((tmp_path / "out").glob("events.out.tfevents.*"))) == 1
    experiment, rows = hparams_tab(tmp_path / "out")
    assert [info.name for info in experiment.hparam_infos] == ["local.lr", "method.mu"]
    metrics = [info.name.tag for info in experiment.metric_infos]
    assert metrics == ["holdout/accuracy", "bytes/total"]
    assert sorted(rows) == ["trials/0000", "trials/0001", "trials/0002"]
    for trial in search.study.get_trials():
        row = rows[f"trials/{trial.number:04d}"]
        assert {key: setting(row, key) for key in trial.params} == trial.params
        found = {value.name.tag: value.value for value in row.metric_values}
        assert [round(found[name], 6) for name in metrics] == [round(v, 6) for v in trial.values]
