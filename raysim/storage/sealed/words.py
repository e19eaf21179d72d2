"""Sealed JSON of a checkpoint or a run, with its own checksum."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from raysim.user_input import parse_json

ABOUT = "state.json"
"""Name of a checkpoint's file."""


def read_sealed(folder: Path, name: str = ABOUT) -> dict[str, Any]:
    """Return the sealed JSON of a folder.

    Raises:
        OSError: the file cannot be read.
        ValueError: the content does not match its seal, or has none.
    """
    body: Any = parse_json((folder / name).read_text(encoding="utf-8"))
    if not isinstance(body, dict) or sealed(body)["seal"] != body.get("seal"):
        raise ValueError(f"{name} does not match its checksum")
    return body


def write_sealed(folder: Path, body: dict[str, Any]) -> None:
    """Write values as JSON with their seal."""
    (folder / ABOUT).write_text(json.dumps(sealed(body)))


def sealed(body: dict[str, Any]) -> dict[str, Any]:
    """Return values with their seal."""
    content = {key: value for key, value in body.items() if key != "seal"}
    text = json.dumps(content, sort_keys=True)
    return {**content, "seal": hashlib.sha256(text.encode()).hexdigest()}
