"""Build step: wheels and source archives get the commit that they are built from, and README.

All else is in `pyproject.toml`. Without git, the commit is left as a source archive has it. GitHub
Actions tell a build where the repository is: links of README then lead there, as they must on PyPI.
"""

import json
import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

CLONE = Path(__file__).parent
LINKS = [CLONE / "raysim" / name for name in ("workloads", "tuning", "cluster")]
"""Links to folders of the clone; real folders in a source archive."""
SOURCE: dict[str, Any] = runpy.run_path(str(CLONE / "raysim/process/source.py"))


def write_source(folder: Path) -> None:
    """Write the commit below a folder of sources that are built, if this is a clone with git."""
    found = SOURCE["git_source"](CLONE) if (CLONE / ".git").exists() else {"commit": None}
    if found["commit"]:
        (folder / SOURCE["FILE"]).write_text(json.dumps(found) + "\n", encoding="utf-8")


class BuildPy(build_py):
    """Build of a wheel; an installation that can be edited asks git later."""

    def run(self) -> None:
        """Copy the sources, then write the commit."""
        (Path(self.build_lib) / SOURCE["FILE"]).unlink(missing_ok=True)  # of an earlier build
        super().run()
        if not self.editable_mode:
            write_source(Path(self.build_lib))


class Sdist(sdist):
    """Build of a source archive."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy the sources, then write the commit."""
        super().make_release_tree(base_dir, files)
        write_source(Path(base_dir))


LINK = re.compile(r"(?<=\]\()([\w./-]*)(?=[#)])")
"""Path that a link in Markdown leads to; empty for a heading of the page itself."""


def described() -> dict[str, Any]:
    """Return README as the description, and addresses if the build knows the repository's."""
    text = (CLONE / "README.md").read_text(encoding="utf-8")
    server, name, ref = (
        os.environ.get(f"GITHUB_{each}") for each in ("SERVER_URL", "REPOSITORY", "REF_NAME")
    )
    home, urls = f"{server}/{name}", {}
    if server and name and ref:
        urls = {"Repository": home, "Changelog": f"{home}/blob/{ref}/CHANGELOG.md"}
        text = LINK.sub(lambda path: f"{home}/blob/{ref}/{path[0] or 'README.md'}", text)
        text = re.sub(rf"(!\[[^]]*\]\({home})/blob/", r"\1/raw/", text)  # pictures
    kind = {"long_description_content_type": "text/markdown"}
    return {"long_description": text, **kind, "project_urls": urls}


for link in LINKS:
    if not link.is_dir():
        sys.exit(
            f"{link}: must be a link to the folder {link.name}; on Windows git makes links if it is"
            " told so: switch on Developer Mode, then git clone -c core.symlinks=true"
        )
setup(cmdclass={"build_py": BuildPy, "sdist": Sdist}, **described())
