"""A user's own data as the start of a run: what `own-data` makes of it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

import raysim
from raysim.errors import DataError
from raysim.workloads.presets import OWN_DATA, OWN_IMAGES, PRESETS
from tests.workloads.datasets.files import layouts

COUNT = 60
LINKS = np.arange(COUNT) % 7
MAILS = {
    "domain": [f"{'abc'[row % 3]}.org" for row in range(COUNT)],
    "links": [str(links) if row else "" for row, links in enumerate(LINKS)],
    "spam": np.where(LINKS > 3, "yes", "no"),
}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    layouts.text(tmp_path / "mails.csv", MAILS)
    return tmp_path


CLIENTS = {
    "a column": ({"client": "domain"}, "natural_or_iid", 3),
    "fewer of them": ({"client": "domain", "clients": 2}, "natural_or_iid", 2),
    "none": ({"leave_out": "domain"}, "natural_or_iid", 10),
    "an own cut": ({"partition.name": "dirichlet"}, "dirichlet", 10),
}


@pytest.mark.parametrize("case", CLIENTS)
@pytest.mark.parametrize("start", ["mails.csv", OWN_DATA])
def test_clients_of_a_table(case, start):
    changes, partition, clients = CLIENTS[case]
    path = {"path": "mails.csv"} if start == OWN_DATA else {}
    settings = raysim.load_config(start, {"target": "spam", **changes, **path})
    assert (settings.partition.title, settings.clients) == (partition, clients)
    assert settings.dataset.standardise and settings.dataset.target == "spam"


def test_settings_of_a_run_give_its_bits_again():
    changes = {"target": "spam", "client": "domain", "rounds": 2, "out": "first"}
    first = raysim.run(raysim.load_config("mails.csv", changes))
    again = raysim.run(raysim.load_config("first/config.json", {"out": "again"}))
    assert first.summary["final_loss"] == again.summary["final_loss"]


REFUSED = {
    "no target": (
        {},
        r"dataset\.target: must name a column of .*mails\.csv: 'domain, links, spam'",
    ),
    "clients": (
        {"target": "spam", "client": 10},
        r"dataset\.client='10': no such column in .*; clients=10 is the number of clients$",
    ),
    "column": ({"target": "spam", "client": "domian"}, r"did you mean 'domain'"),
    "of no dataset": ({"traget": "spam"}, r"traget: no such setting"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_table_lacks_is_named(case):
    changes, says = REFUSED[case]
    with pytest.raises(raysim.RaysimError, match=says):
        raysim.load_config("mails.csv", changes)


def test_folders_of_runs_and_paths_of_nothing(place):
    (place / "my run").mkdir()
    (place / "my run/config.json").write_text("{}")
    with pytest.raises(raysim.SettingsError, match=r"type: raysim resume 'my run'$"):
        raysim.load_config("my run")
    with pytest.raises(DataError, match=r"mail\.csv\.gz: not there"):
        raysim.load_config("mail.csv.gz")
    with pytest.raises(DataError, match=r"dataset\.path: must be given"):
        raysim.check(OWN_DATA)


def test_json_with_an_array_is_data_and_with_an_object_is_settings(place):
    rows = [{"links": int(links), "spam": bool(links > 3)} for links in LINKS]
    (place / "rows.json").write_text(json.dumps(rows))
    assert raysim.load_config("rows.json", {"target": "spam"}).dataset.path.endswith("rows.json")
    (place / "of.json").write_text(json.dumps({"preset": "mnist-fedavg", "rounds": 3}))
    assert raysim.load_config("of.json").rounds == 3


def test_a_folder_of_images_is_learned_by_a_small_cnn(place):
    """Bars lie or stand, somewhere in 16x16 pixels."""
    draw = np.random.default_rng(0)
    for name in ("lying", "standing"):
        (place / "bars" / name).mkdir(parents=True)
        for number in range(60):
            pixels = np.zeros((16, 16), np.uint8)
            pixels[draw.integers(16)] = 200
            image = Image.fromarray(pixels if name == "lying" else pixels.T)
            image.save(place / "bars" / name / f"{number}.png")
    settings = raysim.load_config("bars", {"rounds": 8, "clients": 2, "out": "run"})
    assert settings.local == PRESETS[OWN_IMAGES].settings.local
    result = raysim.run(settings)
    assert result.summary["final_accuracy"] > 0.95
