"""Virtual environments of the peers: pinned packages of their own, and the torch of this one.

Flower and pfl pin packages that raysim does not want, so that each has an environment. Torch is
some gigabytes with what it needs and the same version is wanted everywhere, so it is not installed
again: a folder of links to torch, torchvision and their requirements in this environment comes last
on the peer's path, where a peer's own packages go before it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version
from pathlib import Path

from packaging.requirements import Requirement

SHARED = ("torch", "torchvision")


@dataclass(frozen=True)
class Environment:
    """An environment: the packages that it has, pinned, and those whose versions are told."""

    requirements: tuple[str, ...]
    told: tuple[str, ...]


PEERS = {
    "flower": Environment(("flwr[simulation]==1.41.0",), ("flwr", "ray")),
    "flower-peft": Environment(
        ("flwr[simulation]==1.41.0", "transformers==5.24.0", "peft==0.21.2"),
        ("flwr", "ray", "transformers", "peft"),
    ),
    "pfl": Environment(("pfl==0.6.0", "pyyaml"), ("pfl",)),  # its benchmarks read YAML
}


def make(name: str, root: Path) -> Path:
    """Make a peer's environment, or take the one that is there; return its Python.

    Raises:
        subprocess.CalledProcessError: a package could not be installed.
    """
    folder, peer = root / name, PEERS[name]
    python = folder / "bin" / "python"
    made = folder / "made.json"
    wanted = json.dumps([peer.requirements, sys.prefix, [version(each) for each in SHARED]])
    if made.exists() and made.read_text() == wanted:
        return python
    print(f"making {folder}: {', '.join(peer.requirements)}", file=sys.stderr, flush=True)
    venv.create(folder, clear=True, symlinks=True, with_pip=True)
    install = [str(python), "-m", "pip", "install", "-qq", *peer.requirements]
    # From elsewhere: pip would take the checkout's raysim for installed, and ask for its packages.
    subprocess.run(install, check=True, stdout=sys.stderr, cwd=folder)
    links = folder / "shared"
    links.mkdir()
    link(needed(SHARED), links)
    site = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
    Path(site, "shared.pth").write_text(f"{links}\n")
    made.write_text(wanted)
    return python


def needed(names: Sequence[str]) -> dict[str, Distribution]:
    """Return the installed distributions of these names, and all that they require."""
    found: dict[str, Distribution] = {}
    visited: set[str] = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        requirement = waiting.pop()
        if str(requirement) in visited:
            continue
        visited.add(str(requirement))
        try:
            package = found.setdefault(requirement.name, distribution(requirement.name))
        except PackageNotFoundError:  # one for another system
            continue
        extras = ["", *requirement.extras]
        waiting += [
            each
            for each in map(Requirement, package.requires or ())
            if each.marker is None or any(each.marker.evaluate({"extra": e}) for e in extras)
        ]
    return found


def link(packages: dict[str, Distribution], folder: Path) -> None:
    """Fill a folder with links to the modules and metadata of distributions."""
    for package in packages.values():
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            target = folder / top
            if not target.is_symlink():  # several may share a folder, as nvidia's do
                target.symlink_to(Path(str(package.locate_file(top))).absolute())


def versions(python: Path, name: str) -> str:
    """Return the versions of what a peer's environment is about, such as "flwr 1.41.0"."""
    code = "import sys, importlib.metadata as m; print(*[m.version(n) for n in sys.argv[1:]])"
    told = PEERS[name].told
    output = subprocess.run(
        [str(python), "-c", code, *told], check=True, capture_output=True, text=True
    ).stdout.split()
    return ", ".join(f"{each} {number}" for each, number in zip(told, output, strict=True))
