"""raysim: a Ray-scaled simulation engine for federated learning.

settings = raysim.load_config("mnist-fedavg", {"rounds": 5, "method.name": "scaffold"})
result = raysim.run(settings)
result.summary["final_accuracy"], result.metrics.to_pandas(), result.params
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {
    alias.name: str(node.module)
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a name of the interface when it is first asked for; torch takes seconds."""
    if name == "__version__":
        return _version()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module("raysim.methods")  # registers them
    globals()[name] = value = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    """Return the names of the interface, imported or not."""
    return sorted({*globals(), *__all__})


def _version() -> str:
    """Return the installed version; that of a checkout that is not installed is unknown."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("raysim-fl")
    except PackageNotFoundError:
        return "unknown"
