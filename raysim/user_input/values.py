"""Nested values and settings files of a user."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from raysim.errors import SettingsError, visible

LEVELS = 20
"""Most levels of nested values; settings have four."""
FILE_BYTES = 1_000_000
"""Most bytes of a settings file."""
_NO_KEYS = re.compile(
    r"""\"{3}(?:\\.|[^\\])*?(?:\"{3,5}|\Z)|'{3}.*?(?:'{3,5}|\Z)"""
    r"""|\"(?:\\.|[^\\"\n])*+\"?|'[^'\n]*+'?|\#[^\n]*+""",
    re.DOTALL,
)
"""Strings and comments of TOML; the text of a multi-line string may end in two quotes."""
_DEEP_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{LEVELS}}}")
"""Key with more parts than the allowed levels, in TOML without strings."""


def check_plain(values: Mapping[str, Any]) -> None:
    """Check the depth of nested values, and that strings are valid UTF-8.

    Raises:
        SettingsError: values are invalid; pydantic and JSON would fail on them.
    """
    left: list[tuple[str, int, Any]] = [("", 0, values)]
    while left:
        key, level, value = left.pop()
        if level > LEVELS:
            raise SettingsError(f"{visible(key)}: nested in more than {LEVELS} levels")
        if isinstance(value, Mapping):
            left += [(f"{key}.{k}" if key else str(k), level + 1, v) for k, v in value.items()]
            left += [(key or str(k), level, k) for k in value if isinstance(k, str)]
        elif isinstance(value, list | tuple):
            left += [(key, level + 1, item) for item in value]
        elif not isinstance(value, str) or value.isascii():
            continue
        elif any("\ud800" <= c <= "\udfff" for c in value):
            raise SettingsError(f"{visible(key)}={visible(value)}: must be text in UTF-8")


def dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by dotted key, as overrides that give them again."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= dotted(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def canonical(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted key, in a form for comparison.

    The dictionaries of two settings are equal if the settings are. The order of fields in a group
    or a component does not matter. Any other mapping is ordered, for example `methods` of a chain;
    its own key holds its names in order. At the top, a mapping of mappings is ordered. The values
    of an ordered mapping have fields again. An empty mapping stays, as {}.
    """
    return {
        name: value
        for key, top_value in values.items()
        for name, value in _canonical(key, top_value, has_fields=_has_fields(top_value))
    }


def _has_fields(value: Any) -> bool:
    """Return whether a value at the top is a group or a component: these have plain fields."""
    return isinstance(value, Mapping) and not all(
        isinstance(item, Mapping) for item in value.values()
    )


def _canonical(key: str, value: Any, *, has_fields: bool) -> Iterator[tuple[str, Any]]:
    """Yield the settings under a key; ordered mappings and mappings with fields alternate."""
    if not isinstance(value, Mapping):
        yield key, _paired(value)
        return
    if not value:
        yield key, {}
    elif not has_fields:
        yield key, ", ".join(map(_as_name, value))
    for name, item in value.items():
        yield from _canonical(f"{key}.{name}", item, has_fields=not has_fields)


def _as_name(name: str) -> str:
    """Return a name for a list with commas, quoted if needed."""
    return json.dumps(name) if not name or {*name} & {",", '"'} else name


def _paired(value: Any) -> Any:
    """Return a value with the mappings in its lists as lists of name and value."""
    if isinstance(value, Mapping):
        return [[name, _paired(item)] for name, item in value.items()]
    return [*map(_paired, value)] if isinstance(value, list | tuple) else value


def key_text(*values: Any) -> str:
    """Return a text that is equal for equal values; settings in them are canonical ones."""
    return json.dumps(values, sort_keys=True, default=str)


class RepeatedKeyError(ValueError):
    """JSON has one key twice."""


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Raises:
        RepeatedKeyError: an object has a key twice.
        ValueError: the text is no JSON, or nested too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_of_pairs)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        ValueError: the text is no TOML, or nested too deeply.
    """
    # The time of `tomllib` is quadratic in a key's parts: a minute for 100,000.
    if _DEEP_KEY.search(_NO_KEYS.sub("x", text)):
        raise ValueError(f"a key is nested in more than {LEVELS} levels")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise RepeatedKeyError(f"the key {visible(twice)!r} is given twice")
    return values


def or_none(value: Any) -> Any:
    """Return None for the word `none`, its spelling in TOML; else the value."""
    return None if isinstance(value, str) and value.lower() == "none" else value


def as_typed(value: Any) -> str:
    """Return a value as it is typed after a setting, before a shell quotes it."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def override_text(key: str, value: Any) -> str:
    """Return an override as it is typed in a shell: `raysim.config.parse_override` reads it."""
    return shlex.quote(f"{key}={value_text(value)}")


def label_text(key: str, value: Any) -> str:
    """Return a setting in the label of a row, without quotes and blanks, as `key=value`."""
    return f"{key}={as_typed(value).replace(', ', ',')}"


def value_text(value: Any) -> str:
    """Return the value of an override as it is typed, without the quotes of a shell."""
    is_quoted = isinstance(value, str) and not _is_plain(value)
    return json.dumps(value) if is_quoted else as_typed(value)


def resume_advice(
    run: Path, *, own_task: bool, force: bool = False, overrides: Mapping[str, Any] | None = None
) -> str:
    """Return the command that resumes a run, or the Python call if the run has its own task.

    Args:
        run: The run directory.
        own_task: Whether the run has its own task, which the command line cannot give.
        force: Whether to accept another identity.
        overrides: Settings to change, by dotted key.
    """
    changed = overrides or {}
    if own_task:
        more = [f"overrides={dict(changed)!r}"] * bool(changed) + ["force=True"] * force
        return f"call: raysim.resume({', '.join([repr(str(run)), 'task', *more])})"
    words = [override_text(*override) for override in changed.items()] + ["--force"] * force
    return " ".join(["type: raysim resume", str(run), *words])


def _is_plain(text: str) -> bool:
    """Return whether an unquoted text is read as itself, not as a number or another value."""
    try:
        parse_json(text)
    except RepeatedKeyError:
        return False
    except ValueError:
        return text.strip() == text and text.lower() != "none"
    return False


def read_text(path: Path) -> str:
    """Read a settings file, which may begin with a byte-order mark.

    Raises:
        OSError: the path cannot be read, or is no file.
        ValueError: the file has more than FILE_BYTES, or is no text.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError("is no file")  # reading a pipe would wait
    with path.open("rb") as file:
        content = file.read(FILE_BYTES + 1)
    if len(content) > FILE_BYTES:
        raise ValueError(f"has more than {FILE_BYTES // 10**6} MB")
    return content.decode("utf-8-sig")


def read_file(path: Path) -> dict[str, Any]:
    """Read settings from a TOML or JSON file.

    Raises:
        SettingsError: the file cannot be read or is not valid.
    """
    try:
        text = read_text(path)
        values = parse_toml(text) if path.suffix == ".toml" else parse_json(text)
    except FileNotFoundError as error:
        raise SettingsError(f"{path}: not there; must be a TOML or JSON file") from error
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        raise SettingsError(f"{path}: cannot be read as settings: {cause}") from error
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: must contain a table of settings")
    return values
