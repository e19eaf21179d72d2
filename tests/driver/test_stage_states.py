"""What stages keep at clients, how their encodings compose, and rounds without clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import raysim
from raysim.api.channel import Received
from raysim.federation.task import from_task
from raysim.methods.fedavg import FedAvg
from raysim.numbers.encoding import Encoding
from raysim.numbers.tensors import Layout, flatten
from raysim.storage.client_states import ClientStates
from tests.tasks import Fresh, StopAfter, make_settings, make_task, model_of

HERE = "tests.driver.test_stage_states"
SIZES = (2, 3, 160, 17, 40, 80)
SEEN: dict[str, list[tuple[int, int, dict[str, Any]]]] = {"Before": [], "After": []}
CPU = torch.device("cpu")


def by_name(upload: raysim.Upload) -> dict[str, Any]:
    return {name: tensor.numpy().copy() for name, tensor in flatten(upload.sums).items()}


class Before(raysim.Stage):
    """Notes what reaches it: the client, its samples and its differences."""

    def send(self, view: raysim.View, upload: raysim.Upload) -> raysim.Upload:
        SEEN[type(self).__name__].append((view.client, upload.samples, by_name(upload)))
        return upload


class After(Before):
    """The same, at another place."""


class Feedback(raysim.Stage):
    """Sends the larger half of each tensor, and keeps what it leaves out for the next time."""

    def send(self, view: raysim.View, upload: raysim.Upload) -> raysim.Upload:
        kept = view.state.get("left", {})
        sums: dict[str, dict[str, torch.Tensor]] = {}
        left = {}
        for group, tensors in upload.sums.items():
            sums[group] = {}
            for name, d in tensors.items():
                whole = d + kept.get(f"{group}.{name}", 0)
                large = whole.abs() >= whole.abs().flatten().median()
                sums[group][name] = whole * large
                left[f"{group}.{name}"] = whole * ~large
        return replace(upload, sums=sums, state={"left": left})


class Count(raysim.Stage):
    """Counts the uploads of a client; from the third on it keeps what it has."""

    def send(self, view: raysim.View, upload: raysim.Upload) -> raysim.Upload:
        assert view.state.keys() <= {"times"}  # no other stage's, nor the method's
        times = int(view.state["times"]["n"]) if view.state else 0
        state = {"times": {"n": torch.tensor(times + 1)}} if times < 2 else {}
        return replace(upload, state=state, metrics={"uploads_before": times})


class Half(raysim.Stage):
    """Sends half of the numbers, and their places in 24 bytes."""

    def encoded(self, sent: Encoding, layout: Layout, client: int) -> Encoding:
        return replace(sent, values=sent.values // 2, extra=sent.extra + 24)


class Nibble(raysim.Stage):
    """Sends four bits a number, and a scale of 4 bytes for each tensor."""

    def encoded(self, sent: Encoding, layout: Layout, client: int) -> Encoding:
        return replace(sent, bits=4, extra=sent.extra + 4 * len(layout.entries))


class Third(Half):
    """Declares half of the numbers, and sends a third of those of odd clients."""

    def send(self, view: raysim.View, upload: raysim.Upload) -> raysim.Upload:
        sent = upload.encoding
        assert sent is not None
        thirds = replace(sent, values=sent.values // 3, extra=sent.extra + 1)
        return replace(upload, encoding=thirds) if view.client % 2 else upload


class Noise(raysim.Stage):
    """Adds 1 to the mean difference, in rounds without clients too."""

    acts_on_empty_rounds: ClassVar[bool] = True

    def receive(self, received: Received, reduced: raysim.Reduced) -> raysim.Reduced:
        means = {g: {n: d + 1 for n, d in of.items()} for g, of in reduced.means.items()}
        return replace(reduced, means=means)


class Quiet(Noise):
    """The same, but in rounds without clients."""

    acts_on_empty_rounds: ClassVar[bool] = False


def stages(*names: str) -> dict[str, Any]:
    return {f"{HERE}:{name}": {} for name in names}


def run(path, names, **more) -> raysim.Result:
    settings = make_settings(path, channel=stages(*names), **{"fraction": 0.5, **more})
    return raysim.run(settings, make_task(SIZES), Fresh(*SEEN.values()))


def test_a_client_keeps_what_a_stage_leaves_out(tmp_path):
    """Against NumPy, for clients that miss rounds, of unequal sizes."""
    run(tmp_path, ("Before", "Feedback", "After"), rounds=6)
    left: dict[int, dict[str, Any]] = {}
    again = 0
    for (client, samples, given), (other, _, sent) in zip(*SEEN.values(), strict=True):
        assert client == other and samples == SIZES[client]
        again += client in left
        kept = left.setdefault(client, {})
        for name, d in given.items():
            whole = d + kept.get(name, 0)
            large = np.abs(whole) >= np.sort(np.abs(whole).ravel())[(whole.size - 1) // 2]
            assert np.array_equal(sent[name], whole * large)
            kept[name] = whole * ~large
    assert again > 5 and len(left) > 3


WITH_STATES = {
    "fedavg": {},
    "scaffold": {"method.name": "scaffold"},
    "ditto": {"method.name": "ditto", "evaluation.holdout": 0.2},
    "stacked": {"method.name": "scaffold", "engine.vectorize": 3},
}


@pytest.mark.usefixtures("resident_actors")
@pytest.mark.parametrize("method", WITH_STATES)
def test_states_are_the_same_on_actors_and_after_an_interruption(tmp_path, method):
    """Beside those of a method, which writes in the same pass, or in another one."""
    names = ("Feedback", "Count")
    more = {**WITH_STATES[method], "rounds": 6, "checkpoint_every": 2}
    results = [run(tmp_path / "inline", names, **more)]
    actors = {"engine.backend": "ray", "engine.actors": 2}
    results.append(run(tmp_path / "actors", names, **more, **actors))
    with pytest.raises(KeyboardInterrupt):
        settings = make_settings(
            tmp_path / "cut", channel=stages(*names), **{"fraction": 0.5, **more}
        )
        raysim.run(settings, make_task(SIZES), StopAfter(3))
    results.append(raysim.resume(tmp_path / "cut", make_task(SIZES)))
    assert len({model_of(result.run_dir) for result in results}) == 1
    assert len({str(result.metrics["test_loss"].to_pylist()) for result in results}) == 1
    groups = [newest(result) for result in results]
    for client, kept in groups[0].items():
        for other in groups[1:]:
            assert kept.keys() == other[client].keys()
            assert all(torch.equal(kept[name], other[client][name]) for name in kept)
        own = {name.split("/")[0] for name in kept}
        expected = {f"{HERE}:Feedback@left", f"{HERE}:Count@times"}
        expected |= {"fedavg": set(), "ditto": {"personal"}}.get(method, {"c"})
        assert own == expected
    times = [int(kept[f"{HERE}:Count@times/n"]) for kept in groups[0].values()]
    assert max(times) == 2


def newest(result) -> dict[int, dict[str, torch.Tensor]]:
    """Return what each client keeps at the end, by `group/name`."""
    states = ClientStates(result.run_dir / "clients")
    versions = {client: states.versions(client) for client in range(len(SIZES))}
    return {c: flatten(states.read(c, max(v), CPU)) for c, v in versions.items() if v}


def test_a_method_s_state_is_the_same_beside_that_of_a_stage(tmp_path):
    """`Count` changes no tensor: SCAFFOLD's variates and the models are those without it."""
    method = {"method.name": "scaffold", "rounds": 4}
    plain, counted = run(tmp_path / "a", (), **method), run(tmp_path / "b", ("Count",), **method)
    assert model_of(plain.run_dir) == model_of(counted.run_dir)
    kept = newest(counted)
    for client, tensors in newest(plain).items():
        assert all(torch.equal(kept[client][name], tensor) for name, tensor in tensors.items())


def test_where_rounds_overlap_a_stage_must_not_keep_a_state(tmp_path):
    message = f"^channel.{HERE}:Count: does not go with method.name=fedbuff, whose rounds overlap"
    method = {"method.name": "fedbuff", "method.concurrency": 3, "method.buffer": 2}
    with pytest.raises(raysim.SettingsError, match=message):
        run(tmp_path / "run", ("Count",), **method)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_space_is_checked_for_what_stages_keep(tmp_path, monkeypatch, method):
    needed: list[int] = []
    monkeypatch.setattr(ClientStates, "check_space", lambda _, given: needed.append(given))
    more = {"method.name": method, "rounds": 1, "fraction": 0.5}
    result = run(tmp_path, ("Feedback",), **more)
    values = sum(tensor.numel() for tensor in result.params.values())
    kept = 8 * values * (2 if method == "scaffold" else 1)  # in float64; of c, too
    own = 4 * values if method == "scaffold" else 0
    assert needed == [(3 + 3) * (kept + own)]


@pytest.mark.parametrize("names", [("Half", "Nibble"), ("Nibble", "Half")])
def test_encodings_compose(tmp_path, names):
    result = run(tmp_path, names, rounds=1)
    sizes = [tensor.numel() for tensor in result.params.values()]
    sent = int(np.ceil(sum(sizes) // 2 * 4 / 8)) + 24 + 4 * len(sizes)
    assert result.metrics["bytes_up"].to_pylist() == [3 * sent]


def test_what_is_sent_counts_where_a_stage_knows_it(tmp_path):
    """Behind it, a stage goes on from what was sent."""
    result = run(tmp_path, ("Third", "Nibble", "Before"), rounds=1)
    sizes = [tensor.numel() for tensor in result.params.values()]
    total, scales = sum(sizes), 4 * len(sizes)
    clients = [client for client, _, _ in SEEN["Before"]]
    odd, even = int(np.ceil(total // 3 * 4 / 8)) + 1, int(np.ceil(total // 2 * 4 / 8)) + 24
    expected = sum((odd if client % 2 else even) + scales for client in clients)
    assert result.metrics["bytes_up"].to_pylist() == [expected]
    assert {client % 2 for client in clients} == {0, 1}


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedadam"])
def test_a_stage_may_act_on_rounds_without_clients(tmp_path, method):
    """Of two runs of the same cohorts, one moves in the empty rounds too."""
    poisson = {"selection.name": "poisson", "fraction": 0.17, "rounds": 8, "method.name": method}
    moved = {}
    for name in ("Noise", "Quiet"):
        settings = make_settings(tmp_path / name, channel=stages(name), **poisson)
        rows = list(raysim.rounds(settings, make_task(SIZES)))
        losses, clients = ([row[column] for row in rows] for column in ("test_loss", "clients"))
        empty = [n for n, count in enumerate(clients) if not count and n]
        assert 0 < len(empty) < 7
        moved[name] = [losses[n] != losses[n - 1] for n in empty]
    assert all(moved["Noise"]) and not any(moved["Quiet"])


EMPTY = "acts on rounds without clients, and method.name={} fails in them: "


POISSON = {"selection.name": "poisson"}
CLOCK = {"clock.name": "devices"}


@pytest.mark.parametrize(
    ("method", "empty", "choose"),
    [(name, POISSON, "selection.name=uniform") for name in ("fednova", "mifl", "fsvrg", "fedma")]
    + [("fednova", CLOCK, "clock.name=none")],
)
def test_a_method_whose_round_needs_clients_is_refused_before_the_start(
    tmp_path, method, empty, choose
):
    """Poisson cohorts may be empty, and under a clock all clients may drop out."""
    with pytest.raises(raysim.SettingsError) as raised:
        run(tmp_path / "run", ("Noise",), **empty, **{"method.name": method})
    assert str(raised.value).startswith(f"channel.{HERE}:Noise: {EMPTY.format(method)}")
    assert str(raised.value).endswith(f"choose {choose}")
    assert not (tmp_path / "run").exists()


class Reporting(FedAvg):
    """FedAvg whose clients report a number for the server, which reads it."""

    def rules(self):
        return raysim.Rules(finish=report)


def report(view, trained):
    scalars = {"uploads_before": float(view.client)}
    return raysim.Upload(sums={"model": view.params}, scalars=scalars)


class Counted(Count):
    """The same under another name."""


@pytest.mark.parametrize(
    ("names", "method", "said"),
    [
        (("Count", "Counted"), "fedavg", "channel.{}:Counted: its number 'uploads_before' has the"),
        (
            ("Count",),
            f"{HERE}:Reporting",
            "channel.{}:Count: its number 'uploads_before' has the n",
        ),
    ],
    ids=["two stages", "a stage and the method"],
)
def test_numbers_of_stages_have_names_of_their_own(tmp_path, names, method, said):
    with pytest.raises(raysim.RaysimError) as raised:
        run(tmp_path / "run", names, **{"method.name": method})
    assert said.format(HERE) in str(raised.value)
    assert not (tmp_path / "run").exists()


class AtSign(FedAvg):
    """FedAvg whose clients keep a group with a name as of a stage's."""

    def client_init(self, state):
        return {"c@x": {"n": torch.zeros(1)}}

    def rules(self):
        return raysim.Rules(finish=keep)


def keep(view, trained):
    kept = {"c@x": {"n": view.state["c@x"]["n"] + 1}}
    return raysim.Upload(sums={"model": view.params}, state=kept)


def test_a_method_may_name_its_groups_as_it_likes(tmp_path):
    result = run(tmp_path, ("Count",), **{"method.name": f"{HERE}:AtSign", "rounds": 3})
    for kept in newest(result).values():
        assert {*kept} == {"c@x/n", f"{HERE}:Count@times/n"}


def test_without_clients_the_mean_difference_is_zero(tmp_path):
    """Every round without clients adds 1 to the model, whose server adopts the mean."""
    poisson = {"selection.name": "poisson", "fraction": 0.17, "rounds": 8, "local.lr": 1e-30}
    result = run(tmp_path, ("Noise",), **poisson)
    start = from_task(make_task(SIZES)).network(0).state_dict()
    for name, tensor in result.params.items():
        assert torch.allclose(tensor, start[name] + 8, atol=1e-5)
    assert 0 in result.metrics["clients"].to_pylist()
