"""A source archive and the wheel that is built from it, where there is neither a clone nor git."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from email import message_from_string
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[1]
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
FOLDERS = ("raysim", "workloads", "tuning", "cluster")
ACTIONS = {
    "GITHUB_SERVER_URL": "https://example.org",
    "GITHUB_REPOSITORY": "owner/name",
    "GITHUB_REF_NAME": "v1",
}
"""Variables of a build in GitHub Actions."""
BUILD = "import sys; from setuptools import build_meta as b; print(b.build_{}(sys.argv[1]))"
WALK = """
import importlib.metadata, json, sys
from pathlib import Path

import raysim
from typer.testing import CliRunner
from raysim.cli.app import app

def type_(*words):
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout

assert Path(raysim.__file__).is_relative_to(sys.argv[1]), raysim.__file__
assert type_("--version") == f"raysim {raysim.__version__}\\n"
kinds = json.loads(type_("list", "--json"))
for kind, names in kinds.items():
    assert kind == "runs" or type_("list", kind, names[0])
assert "sbatch" in type_("list", "manifests", "slurm.sh")
type_("new", "task", "my_task")
short = "rounds=1 dataset.name=plane model.name=linear target_accuracy=none engine.backend=inline"
type_("run", "mnist-fedavg", *short.split(), "out=run")
type_("report", "run", "-o", "report.html")
found = json.loads(Path("run/environment.json").read_text())
print(json.dumps([found["source"], importlib.metadata.version("raysim-fl"), raysim.__version__]))
"""


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def build(kind: str, source: Path, out: Path, **variables: str) -> Path:
    """Build a source archive or a wheel as pip does; return its path."""
    command = [sys.executable, "-c", BUILD.format(kind), str(out)]
    done = subprocess.run(
        command, cwd=source, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a clone with one commit of what is to be built."""
    clone = tmp_path_factory.mktemp("clone")
    for name in FILES:
        shutil.copy(ROOT / name, clone)
    for name in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, clone / name, symlinks=True, ignore=ignored)
    git(clone, "init", "-q")
    git(clone, "add", ".")
    git(clone, "commit", "-q", "-m", "all")
    return clone


@pytest.fixture(scope="module")
def packages(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of packages with the wheel that was built from the source archive."""
    out = tmp_path_factory.mktemp("built")
    (clone / "tests").mkdir()
    (clone / "tests/test_alone.py").touch()
    shutil.unpack_archive(build("sdist", clone, out), out, filter="data")
    (source,) = (path.parent for path in out.glob("*/pyproject.toml"))
    assert not (source / "tests").exists()  # a few of many, without what they need
    wheel = build("wheel", source, out, PATH="", **ACTIONS)
    assert wheel.stat().st_size < 2**21
    shutil.unpack_archive(wheel, out / "packages", "zip")
    return out / "packages"


def test_the_description_leads_to_the_repository_of_the_build(packages):
    """As PyPI shows it, which has no files of the repository."""
    (path,) = packages.glob("*.dist-info/METADATA")
    metadata = message_from_string(path.read_text(encoding="utf-8"))
    home, readme = "https://example.org/owner/name", (ROOT / "README.md").read_text("utf-8")
    assert f"Repository, {home}" in metadata.get_all("Project-URL")
    assert metadata["Description-Content-Type"] == "text/markdown"
    found = re.findall(r"(!?)\[[^]]*\]\(([^)]+)\)", metadata.get_payload())
    pictures = [target for mark, target in found if mark]
    assert pictures and all(each.startswith(f"{home}/raw/v1/") for each in pictures)
    assert {urlsplit(target).scheme for _, target in found} == {"https"}
    paths = {urlsplit(target).path.partition("/v1/")[2] for _, target in found if home in target}
    assert len(paths) > 5 and all(path in readme and (ROOT / path).exists() for path in paths)


def test_the_wheel_has_all_modules_and_their_data(packages):
    expected = {
        path.relative_to(ROOT).as_posix()
        for top in ("raysim", *(f"raysim/{name}" for name in FOLDERS[1:]))  # the latter are links
        for path in (ROOT / top).rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".md", ".png")
    }
    wheel = {
        path.relative_to(packages).as_posix()
        for path in packages.rglob("*")
        if path.is_file() and not path.parts[len(packages.parts)].endswith(".dist-info")
    }
    assert wheel == expected | {"raysim/source.json"}
    assert not any(path.is_symlink() for path in packages.rglob("*"))


def test_the_wheel_works_without_a_clone_and_names_its_commit(packages, clone, tmp_path):
    variables = {"PYTHONPATH": str(packages), "PATH": "", "RAYSIM_DATA": str(tmp_path / "data")}
    done = subprocess.run(
        [sys.executable, "-c", WALK, str(packages)],
        cwd=tmp_path,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    commit, own = git(clone, "rev-parse", "HEAD"), version("raysim-fl")
    assert done.stdout == f'[{{"commit": "{commit}", "changed": false}}, "{own}", "{own}"]\n'
    assert (tmp_path / "my_task.py").exists() and (tmp_path / "report.html").exists()


def test_a_clone_without_links_is_refused_in_one_line(clone, tmp_path):
    """As git makes it on Windows, unless it is told otherwise."""
    git(tmp_path, "clone", "-q", "-c", "core.symlinks=false", str(clone), "copy")
    command = [sys.executable, "setup.py", "--version"]
    done = subprocess.run(
        command, cwd=tmp_path / "copy", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.strip().endswith("git clone -c core.symlinks=true")
    assert done.stderr.count("\n") == 1
