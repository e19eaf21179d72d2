"""The site of the documentation: `python -m sphinx -W -c docs . build/docs`.

Its sources are the pages in `docs/` and the README pages of the folders, where they lie: a fact is
written once, and a link works in the repository as on the site.
"""

import inspect
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

project, author = "raysim", "The raysim authors"
copyright = "the raysim authors; license Apache-2.0"
html_title = "raysim"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
root_doc = "docs/index"
include_patterns = [
    *("docs/*.md", "docs/settings/*.md", "examples/*.ipynb", "examples/README.md"),
    *("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md", "SECURITY.md"),
    *("raysim/*.md", "tuning/README.md", "cluster/*.md"),
    *("workloads/*.md", "workloads/papers/*.md", "tests/benchmarks/*.md"),
]
FOLDERS = {"docs", "examples", "raysim", "tuning", "cluster", "workloads", "tests"}
exclude_patterns = [
    *(each.name for each in ROOT.iterdir() if each.is_dir() and each.name not in FOLDERS),
    *("raysim/workloads", "raysim/tuning", "raysim/cluster"),  # links to the folders beside it
]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "cache"  # a notebook is executed again where its code has changed
nb_execution_in_temp = True
nb_execution_cache_path = str(ROOT / "build" / "notebooks")
nb_execution_raise_on_error = True
nb_execution_timeout = 600

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"exclude-members": "model_config"}
python_maximum_signature_line_length = 80
napoleon_custom_sections = [("Attributes", "params_style")]
default_role = "code"  # docstrings quote names as Markdown does

pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
html_theme = "furo"
html_extra_path = ["site/index.html"]
html_search_scorer = str(ROOT / "docs/site/scorer.js")
html_static_path = ["site/style.css"]
html_css_files = ["style.css"]
html_copy_source = False
copybutton_exclude = ".linenos, .gp, .go"


def code_blocks(*given: Any) -> None:
    """Show indented lines of a docstring, behind a colon and an empty line, as code."""
    lines: list[str] = given[-1]
    for number, (line, between, after) in enumerate(zip(lines, lines[1:], lines[2:], strict=False)):
        if line.endswith(":") and not between and after.startswith("    "):
            lines[number] = f"{line}:"


def signatures(app: Any, kind: str, name: str, found: Any, *more: Any) -> tuple[str, str] | None:
    """Show the arguments of a class without types, which its attributes have."""
    if kind != "class":
        return None
    shown = []
    for each in inspect.signature(found).parameters.values():
        plain = isinstance(each.default, str | int | float | tuple | None)
        default = repr(each.default) if plain else "..."
        shown.append(str(each.name) if each.default is each.empty else f"{each.name}={default}")
    return f"({', '.join(shown)})", ""


def setup(app: Any) -> None:
    """Register the functions above with Sphinx."""
    app.connect("autodoc-process-signature", signatures)
    app.connect("autodoc-process-docstring", code_blocks, priority=400)  # before napoleon
