"""Archives of results: what is in one, that it opens elsewhere, and what is refused."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
import zipfile
from pathlib import Path
from urllib.parse import unquote

import pytest

import raysim
from raysim.results import packed
from raysim.results.packed import cut
from raysim.storage.revisions import revisions_of
from raysim.storage.sealed.words import sealed, write_sealed
from tests.blobs import Blobs
from tests.cli.test_app import one_line_error, raysim_command  # noqa: F401 - a fixture
from tests.results.conftest import make_rows, write_run_at
from tests.tasks import long_settings

CRATE = "ro-crate-metadata.json"
PROFILE = {"@id": "https://w3id.org/ro/crate/1.1"}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    """Write a folder of two seeds of a small run."""
    folder = tmp_path_factory.mktemp("results") / "mine"
    for seed in (0, 1):
        given = {"dataset.name": "tests.blobs:Blobs", "model.name": "tests.blobs:Linear"}
        given |= {"method.name": "fedavg", "engine.backend": "inline", "clients": 10}
        given |= {"rounds": 2, "seed": seed, "out": str(folder / f"seed {seed}")}
        raysim.run(raysim.load_config("dataset.name=tests.blobs:Blobs", given))
    return folder


def test_an_archive_compares_as_its_folder_does(raysim_command, sweep, tmp_path):  # noqa: F811
    assert Blobs.classes == 3  # the runs' own class, which an opened archive must not import
    code, said, err = raysim_command("pack", str(sweep))
    assert (code, err) == (0, "") and said.startswith("packed: results.zip, 2 runs, ")
    _, here, _ = raysim_command("compare", *map(str, sorted(sweep.iterdir())), "--json")
    _, there, _ = raysim_command("compare", "results.zip", "--json")
    assert json.loads(here.replace(f"{sweep.parent}/", "")) == json.loads(there)
    assert [run["run"] for run in json.loads(there)["groups"][0]["runs"]] == [
        *("mine/seed 0", "mine/seed 1")
    ]
    assert len(json.loads(there)["groups"]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["results.zip"]
    _, whole, _ = raysim_command("compare", str(sweep), "--json")
    assert json.loads(whole) == json.loads(here)


def test_an_archive_has_no_checkpoint_and_no_path(raysim_command, sweep, tmp_path):  # noqa: F811
    raysim_command("pack", str(sweep), "-o", "one.zip")
    raysim_command("pack", str(sweep), "-o", "two.zip")
    assert Path("one.zip").read_bytes() == Path("two.zip").read_bytes()
    with zipfile.ZipFile("one.zip") as archive:
        names = archive.namelist()
        for name in names:
            content = archive.read(name)
            assert str(sweep.parent).encode() not in content, name
            assert str(Path.home()).encode() + b"/" not in content, name
    kinds = {name.removeprefix("mine/seed 0/") for name in names if "seed 0" in name}
    assert kinds == {
        *("config.json", "environment.json", "summary.json", "plugins.json", "metrics.parquet"),
        *("clients.parquet/part-000000.parquet", "partition.arrow"),
        "checkpoints/round_000002/state.json",
    }
    shutil.unpack_archive("one.zip", "elsewhere")
    assert one_line_error(raysim_command("resume", "elsewhere/mine/seed 0"))


def test_the_crate_describes_each_file(raysim_command, sweep):  # noqa: F811
    """As RO-Crate 1.1 asks, section by section; each reference leads to an entity."""
    raysim_command("pack", str(sweep))
    with zipfile.ZipFile("results.zip") as archive:
        crate = json.loads(archive.read(CRATE))
        contents = {name: archive.read(name) for name in archive.namelist()}
    assert all(" " not in entity["@id"] for entity in crate["@graph"])
    graph = {unquote(entity["@id"]): entity for entity in crate["@graph"]}
    assert len(graph) == len(crate["@graph"])
    assert crate["@context"] == [
        *("https://w3id.org/ro/crate/1.1/context", {"sha256": "http://schema.org/sha256"})
    ]
    assert graph[CRATE]["conformsTo"] == PROFILE and graph[CRATE]["about"] == {"@id": "./"}
    root = graph["./"]
    assert root["@type"] == "Dataset" and root["datePublished"][:2] == "20"
    parts = [unquote(part["@id"]) for part in root["hasPart"]]
    assert {*parts} == contents.keys() - {CRATE}
    for part in parts:
        file, content = graph[part], contents[part]
        assert file["@type"] == "File" and file["contentSize"] == str(len(content))
        assert file["sha256"] == hashlib.sha256(content).hexdigest()
    data, *runs = [graph[unquote(entity["@id"])] for entity in root["mentions"]]
    assert [data["@type"], *(run["@type"] for run in runs)] == ["Dataset", *["CreateAction"] * 2]
    for run in runs:
        assert graph[unquote(run["instrument"]["@id"])]["name"] == "raysim"
        assert run["object"][0]["@id"] == data["@id"]
        assert all(unquote(entity["@id"]) in graph for entity in [*run["object"], *run["result"]])
        assert f"seed {run['@id'][-1]}" in run["name"]


@pytest.mark.parametrize(
    ("started", "known"),
    [
        ("2026-01-01T10:00:00+00:00", "2026-01-01T10:00:00+00:00"),
        ("<script>", None),
        ("unknown", None),
        (None, None),
    ],
)
def test_a_start_that_is_no_date(raysim_command, tmp_path, started, known):  # noqa: F811
    """The crate is dated by the settings' file; neither the action nor BibTeX has a date."""
    run = write_run_at(tmp_path / "a #1%", make_rows([0.5]))
    (run / "environment.json").write_text(json.dumps({"started": started}))
    os.utime(run / "config.json", (0, 0))
    raysim_command("pack", str(run))
    with zipfile.ZipFile("results.zip") as archive:
        graph = {entity["@id"]: entity for entity in json.loads(archive.read(CRATE))["@graph"]}
    assert graph["./"]["datePublished"] == (known or "1970-01-01T00:00:00+00:00")
    assert graph["./"]["description"].endswith(" of runs of raysim: 1.")
    assert graph["#a%20%231%25"].get("startTime") == known
    assert "a%20%231%25/config.json" in graph
    raysim_command("report", "results.zip", "-o", "cite.bib")
    cited = Path("cite.bib").read_text()
    assert ("year = {2026}" in cited) == ("year" in cited) == bool(known)
    assert "note      *: fewer than 3 seeds." in cited


@pytest.mark.parametrize(("digest", "groups"), [("1", 1), ("2", 2), (None, 2)])
def test_a_path_of_equal_samples_decides_nothing(
    raysim_command,  # noqa: F811
    tmp_path,
    digest,
    groups,
):
    """Which an archive has without its folder; a run without digests is of its path."""
    for seed, own in enumerate(["1", digest]):
        place = {"dataset.name": "files", "dataset.path": str(tmp_path / "mine.csv")}
        run = write_run_at(tmp_path / f"run{seed}", make_rows([0.5]), seed=seed, **place)
        if own:
            (run / "checkpoints/round_000001").mkdir(parents=True)
            identity = {"training samples": own, "test samples": "0"}
            identity |= revisions_of(long_settings(run))
            write_sealed(run / "checkpoints/round_000001", {"identity": identity})
    raysim_command("pack", "run0")
    code, said, err = raysim_command("compare", "results.zip", "run1", "--json")
    assert (code, err) == (0, "")
    assert len(json.loads(said)["groups"]) == groups


def test_a_report_of_an_archive(raysim_command, write_run, tmp_path):  # noqa: F811
    """Beside a run of this machine, with the citation of both."""
    write_run("theirs", make_rows([0.5, 0.75]), seed=1)
    write_run("ours", make_rows([0.5, 0.25]), seed=2)
    raysim_command("pack", "theirs")
    code, said, err = raysim_command("report", "results.zip", "ours", "-o", "page.html")
    assert (code, said, err) == (0, "report: page.html\n", "")
    text = (tmp_path / "page.html").read_text()
    assert "raysim-" not in text.replace("raysim-fl", "").replace("{raysim-", "")  # no folder
    assert "<h2>To cite these runs</h2>" in text and "settings  fedavg: sha256 " in text
    code, said, err = raysim_command("report", "results.zip", "ours", "-o", "cite.bib")
    assert (code, said, err) == (0, "citation: cite.bib\n", "")
    cited = (tmp_path / "cite.bib").read_text()
    assert "seed 1, 2\n" in cited and cited.count("@") == 2 and "@misc{raysim-" in cited
    for figure in ("50.00 ± 17.68 (n=2)*", "50.00 +/- 17.68 (n=2)*"):  # in words, in BibTeX
        assert figure in cited
    assert "  year = {2026}," in cited and "licence: that of its source" in cited


@pytest.mark.parametrize(
    ("file", "changes", "said"),
    [
        ("config.json", {"evaluation": {"every": 0}}, "evaluation.every=0 is no number of rounds"),
        ("config.json", {"evaluation": {"every": "x"}}, "evaluation.every='x' is no number of"),
        ("config.json", {"seed": -1}, "seed=-1 is no seed"),
        ("environment.json", {"source": {"commit": []}, "packages": []}, ""),
        ("checkpoints/round_000001/state.json", {"identity": []}, ""),
        ("checkpoints/round_000001/state.json", {"identity": {"version": 1}}, ""),
    ],
)
def test_odd_values_end_in_one_line(raysim_command, tmp_path, file, changes, said):  # noqa: F811
    """An archive may say anything; "" where what is odd is taken as unknown."""
    path = write_run_at(tmp_path / "run", make_rows([0.5])) / file
    path.parent.mkdir(parents=True, exist_ok=True)
    recorded = json.loads(path.read_text()) if path.exists() else {}
    for part, odd in changes.items():
        is_part = isinstance(odd, dict)
        recorded[part] = recorded.get(part, {}) | odd if is_part else odd
    path.write_text(json.dumps(sealed(recorded)))
    with zipfile.ZipFile("results.zip", "w") as archive:
        for each in (path for path in (tmp_path / "run").rglob("*.*") if path.stem != "model"):
            archive.write(each, f"run/{each.relative_to(tmp_path / 'run')}")
    done = raysim_command("report", "results.zip", "-o", "cite.bib")
    if said:
        assert said in one_line_error(done)
    else:
        assert done == (0, "citation: cite.bib\n", "")


def test_several_archives_are_told_apart(raysim_command, tmp_path):  # noqa: F811
    for place, accuracy in (("a", 0.5), ("b", 0.25)):
        write_run_at(tmp_path / place / "run", make_rows([accuracy]))
        raysim_command("pack", f"{place}/run", "-o", f"{place}.zip")
    _, said, _ = raysim_command("compare", "a.zip", "b.zip", "--json")
    runs = [run["run"] for group in json.loads(said)["groups"] for run in group["runs"]]
    assert runs == ["a.zip/run", "b.zip/run"]


def member(
    name: str,
    content: bytes = b"{}",
    mode: int = stat.S_IFREG | 0o644,
    kind: int = zipfile.ZIP_DEFLATED,
) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    info.compress_type = kind
    info.comment = content
    return info


def archive_of(*members: zipfile.ZipInfo) -> bytes:
    """Return an archive with the contents that stand in its members' comments."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for info in members:
            content, info.comment = info.comment, b""
            archive.writestr(info, content)
    return held.getvalue()


def damaged(kind: int) -> bytes:
    """Return an archive with a member of a kind whose content is damaged."""
    content = bytearray(archive_of(member(CONFIG, bytes(range(256)), kind=kind)))
    start = 30 + len(CONFIG) + 12  # after the local header, and that of LZMA or bzip2
    content[start : start + 20] = b"\xff" * 20
    return bytes(content)


CONFIG = "run/config.json"
HOSTILE = {
    "no zip": (b"PK\x03\x04 and no more", "cannot be opened as a zip"),
    "cut off": (archive_of(member(CONFIG))[:-30], "cannot be opened as a zip"),
    "empty": (archive_of(), "holds no run"),
    "up": (archive_of(member("../config.json")), "../config.json: must be a path within"),
    "inner up": (archive_of(member("run/../../config.json")), "must be a path within the archive"),
    "root": (archive_of(member("/etc/config.json")), "/etc/config.json: must be a path within"),
    "drive": (archive_of(member("C:/run/config.json")), "must be a path within the archive"),
    "backslash": (archive_of(member("run\\..\\config.json")), "must be a path within"),
    "link": (
        archive_of(member(CONFIG, b"/etc/passwd", stat.S_IFLNK | 0o777)),
        "must be a file, no link or device",
    ),
    "twice": (
        archive_of(member("run/summary.json"), member("RUN/summary.json")),
        "RUN/summary.json: is there twice",
    ),
    "pickle": (archive_of(member(CONFIG), member("run/state.pkl")), "is no file of results"),
    "code": (archive_of(member(CONFIG), member("run/sitecustomize.py")), "is no file of results"),
    "checkpoint": (
        archive_of(member(CONFIG), member("run/checkpoints/round_000001/state.safetensors")),
        "is no file of results",
    ),
    "deep": (archive_of(member("a/" * 20 + "config.json")), "must have at most 16 parts"),
    "long": (archive_of(member("漢" * 200 + "/config.json")), "each of at most 255 bytes"),
    "within a file": (
        archive_of(member(CONFIG), member(f"{CONFIG}/config.json")),
        "run/config.json/config.json: is a file and a folder",
    ),
    "file above": (
        archive_of(member("Run/config.json/config.json"), member(CONFIG)),
        "run/config.json: is a file and a folder",
    ),
    "damaged": (damaged(zipfile.ZIP_DEFLATED), "cannot be opened as a zip"),
    "damaged LZMA": (damaged(zipfile.ZIP_LZMA), "run/config.json: must be stored or deflated"),
    "damaged bzip2": (damaged(zipfile.ZIP_BZIP2), "run/config.json: must be stored or deflated"),
    "bomb": (archive_of(member(CONFIG, b" " * (70 << 20))), "bytes for an archive of its size"),
    "no settings": (archive_of(member(CONFIG)), "run: holds no run"),
    "no JSON": (archive_of(member(CONFIG, b"[" * 100_000)), "run: holds no run"),
}


@pytest.mark.parametrize("words", [("compare",), ("report", "-o", "page.html")])
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_archive_is_refused(
    raysim_command,  # noqa: F811
    monkeypatch,
    tmp_path,
    case,
    words,
):
    content, said = HOSTILE[case]
    (tmp_path / "aside").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "aside"))
    (tmp_path / "their.zip").write_bytes(content)
    error = one_line_error(raysim_command(words[0], "their.zip", *words[1:]))
    assert said in error and "raysim-" not in error
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["aside", "their.zip"]


def test_many_files_and_a_lying_size_are_refused(raysim_command, monkeypatch):  # noqa: F811
    monkeypatch.setattr(packed, "MOST_FILES", 1)
    Path("many.zip").write_bytes(archive_of(member(CONFIG), member("run/summary.json")))
    assert "2 files of 4 bytes" in one_line_error(raysim_command("compare", "many.zip"))
    monkeypatch.setattr(packed, "LONGEST", 9999)
    Path("long.zip").write_bytes(archive_of(member(f"{'n' * 300}/{CONFIG}")))
    assert "long.zip: cannot be opened as a zip: File name too long" in one_line_error(
        raysim_command("compare", "long.zip")
    )
    content = archive_of(member(CONFIG, b" " * 1000))
    lying = content.replace((1000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    assert lying != content
    Path("lying.zip").write_bytes(lying)
    assert "cannot be opened as a zip" in one_line_error(raysim_command("compare", "lying.zip"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pack", "nowhere"), "nowhere: there is no such folder"),
        (("pack", "."), ".: holds no run"),
        (("pack", "damaged"), "damaged: holds no run"),
        (("pack", "run", "-o", "out.tar"), "--out=out.tar: must be a .zip file"),
        (("pack", "run", "-o", "no/out.zip"), "--out=no/out.zip: must be a .zip file"),
        (("compare", "no.zip"), "no.zip: there is no such file"),
        (("report", "run", "-o", "page.pdf"), "--out=page.pdf: must be a .html or .bib file"),
    ],
)
def test_bad_input_is_refused(raysim_command, tmp_path, words, said):  # noqa: F811
    if "damaged" in words:
        (tmp_path / "damaged").mkdir()
        (tmp_path / "damaged" / "config.json").write_text('{"own_task":')
    if "run" in words:
        write_run_at(tmp_path / "run", make_rows([0.5]))
    before = sorted(tmp_path.rglob("*"))
    assert said in one_line_error(raysim_command(*words))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/me/data/mails.csv", "mails.csv"),
        ("/mails.csv", "mails.csv"),
        ("/mnt/x/jane doe/secret project/data file.csv", "data file.csv"),
        ("/mnt/jane's, doe/ a/mails.csv", "mails.csv"),
        ("/mnt/jane doe/a b.csv: is damaged", "a b.csv: is damaged"),
        ("no '/tmp/jane doe/a b.csv' or /tmp/c", "no 'a b.csv' or c"),
        ("from /tmp/jane doe/a to /tmp/me/b", "from a to b"),
        ("file:///home/me/mails.csv", "file://mails.csv"),
        ("sqlite:////home/me/jane doe/a.db", "sqlite://a.db"),
        ("node1:/home/me/mails.csv", "node1:mails.csv"),
        ("PYTHONPATH=/home/me/a", "PYTHONPATH=a"),
        ("data/mails.csv", "data/mails.csv"),
        ("~/mails.csv", "~/mails.csv"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("File '/usr/lib/x/y.py', line 3: see /tmp/a/b", "File 'y.py', line 3: see b"),
        ("1/2/3", "1/2/3"),
    ],
)
def test_paths_are_cut(text, expected):
    assert cut({"a": [text, 1], text: 2}) == {"a": [expected, 1], expected: 2}


@pytest.mark.parametrize(
    ("folder", "named"),
    [
        ("colon:run", "colon-run"),
        ("back\\slash", "back-slash"),
        ("in/a:b/c*d", "in/a-b/c-d"),
    ],
)
def test_names_of_folders_are_portable(raysim_command, tmp_path, folder, named):  # noqa: F811
    write_run_at(tmp_path / folder, make_rows([0.5]))
    assert raysim_command("pack", folder.partition("/")[0])[0] == 0
    code, said, err = raysim_command("compare", "results.zip", "--json")
    assert (code, err) == (0, "")
    assert json.loads(said)["groups"][0]["runs"][0]["run"] == named


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        (["d/" * 15 + "run"], "config.json: must have at most 16 parts"),
        (["one/a:b", "one/a-b"], "one/a-b/config.json: is there twice"),
    ],
)
def test_an_archive_that_compare_refuses_is_not_written(
    raysim_command,  # noqa: F811
    folders,
    said,
):
    for folder in folders:
        write_run_at(Path(folder), make_rows([0.5]))
    assert said in one_line_error(raysim_command("pack", folders[0].partition("/")[0]))
    assert not Path("results.zip").exists()
