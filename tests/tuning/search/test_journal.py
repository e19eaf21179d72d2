"""Journals of studies: where they are the default, and what becomes of torn and damaged ones."""

from __future__ import annotations

import pytest
from optuna.storages import JournalStorage

import raysim
from raysim.errors import MachineError
from raysim.tuning.command import serve
from raysim.tuning.search import storage as storages
from raysim.tuning.search.storage import default_storage
from raysim.tuning.studies.samplers import SearchOptions
from tests.tuning.common import make_search, make_tuner, values
from tests.tuning.search.test_search import play

MOUNTS = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:50 / {0}/shared rw - nfs4 server:/export rw
23 21 0:51 / {0}/with\\040space rw shared:3 - fuse.sshfs me@server: rw
24 22 8:2 / {0}/shared/local rw - xfs /dev/sdb1 rw
25 21 8:3 / {0}/hidden rw - nfs server:/other rw
26 21 8:3 / {0}/hidden rw - ext4 /dev/sdc1 rw
"""


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("shared/runs/study", "study.journal"),
        ("with space/study", "study.journal"),
        ("shared/local/study", "study.db"),
        ("sharedness", "study.db"),
        ("hidden/study", "study.db"),
        ("study", "study.db"),
    ],
)
def test_the_default_on_a_network_is_a_journal(tmp_path, monkeypatch, place, found):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.format(tmp_path))
    monkeypatch.setattr(storages, "MOUNTS", mounts)
    folder = tmp_path / place
    assert default_storage(folder).endswith(f":////{str(folder / found)[1:]}")
    folder.mkdir(parents=True)
    for other in ("study.journal", "study.db"):  # one that is there stays
        (folder / other).touch()
        assert default_storage(folder).endswith(other)


@pytest.fixture
def journal(tmp_path):
    """The file and the URL of a journal with two trials."""
    path = tmp_path / "study.journal"
    url = f"journal:///{path}"
    search = make_search(tmp_path, RANDOM, url)
    search.claim()
    play(search, 2)
    return path, url


RANDOM = SearchOptions("random")


def test_a_line_that_was_half_written_is_written_anew(tmp_path, journal):
    path, url = journal
    search = make_search(tmp_path, RANDOM, url)
    play(search, 1)
    expected, lines = values(search), path.read_bytes().splitlines(keepends=True)
    for size in (1, 5, 40, len(lines[-1]) - 1):
        path.write_bytes(b"".join(lines[:-1]) + lines[-1][:size])
        (trial,) = make_search(tmp_path, RANDOM, url).take_over()  # its end was not written
        again = make_search(tmp_path, RANDOM, url)
        summary = {"final_holdout_accuracy": trial.params["local.lr"], "bytes_up": 0}
        again.tell(again.take_over()[0], summary | {"bytes_down": 0})
        assert values(make_search(tmp_path, RANDOM, url)) == expected


@pytest.mark.parametrize("damage", [b"\0" * 40, b"}{\n", b'{"op_code": 77}\n', b"[]\n", b"null\n"])
def test_a_damaged_journal_is_refused_in_one_line(tmp_path, journal, damage):
    path, url = journal
    content = path.read_bytes()
    half = content.index(b"\n", len(content) // 2) + 1
    damaged = content[:half] + damage + (content[half:] if damage.endswith(b"\n") else b"")
    path.write_bytes(damaged)
    with pytest.raises(raysim.RunError) as caught:
        make_search(tmp_path, RANDOM, url)
    said = str(caught.value)
    assert said.startswith(f"storage={url}: cannot be used: damaged file: ") and "\n" not in said
    assert said.endswith(
        "restore the file, or choose another --out (and --storage, if it is given)"
    )
    assert path.read_bytes() == damaged


def test_a_journal_that_is_deleted_is_not_made_anew(tmp_path, local_slots):
    url = f"journal:///{tmp_path / 'study.journal'}"
    local_slots.fault = lambda number: (tmp_path / "study.journal").unlink()
    with pytest.raises(MachineError, match=r"study\.journal: the file is gone; fix this"):
        make_tuner(make_search(tmp_path, RANDOM, url, rounds=1), tmp_path).run(1, 1)
    assert not (tmp_path / "study.journal").exists()


def test_a_dashboard_of_a_journal(journal, monkeypatch):
    pytest.importorskip("optuna_dashboard")
    served = []
    monkeypatch.setattr(
        "optuna_dashboard.run_server", lambda storage, *_, **__: served.append(storage)
    )
    serve(journal[1], "127.0.0.1", 8080)
    (storage,) = served
    assert isinstance(storage, JournalStorage) and len(storage.get_all_studies()) == 1
