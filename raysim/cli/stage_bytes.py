"""Page of `raysim list stages --of RUN`: the bytes of a run's model, up and down."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

import raysim
from raysim.api.channel import Stages, beside_of, declared, sent_bytes, with_effect
from raysim.api.components import build_component
from raysim.api.differences import Differences
from raysim.channel import STAGES
from raysim.cli.live_view import loading
from raysim.driver.uploads.downlink import expected_bytes
from raysim.errors import SettingsError
from raysim.federation.federation import network_of
from raysim.numbers.encoding import Encoded
from raysim.numbers.tensors import buffer_names, nbytes, set_base, state_of
from raysim.user_input import as_typed


def page(source: str) -> Table:
    """Return the table of all stages, with the bytes of a model through each.

    Args:
        source: A preset, or a file of settings.

    Raises:
        SettingsError: the size of the model is not known before its data are opened.
    """
    table = Table(
        *("name", "settings", "bytes up", "bytes down", "of the model", "description"),
        title=f"stages, for the model of {source}: what a client sends and receives by FedAvg",
        title_justify="left",
        box=None,
    )
    for row in sizes(source):
        coded = ["-" if row[way] is None else str(row[way]) for way in ("bytes_up", "bytes_down")]
        share = f"{row['of_the_model']:.2%}"
        table.add_row(row["name"], row["settings"], *coded, share, row["description"])
    return table


def sizes(source: str) -> list[dict[str, Any]]:
    """Return the rows of the page: bytes as integers, or None if a stage is refused; and the share.

    The bytes down are of an increment, for stages that the down-link can have at these settings.

    Args:
        source: A preset, or a file of settings.

    Raises:
        SettingsError: the size of the model is not known before its data are opened.
    """
    with loading(Console(stderr=True, emoji=False)):
        settings = raysim.load_config(source)
    data = settings.data
    if data.shape is None or data.classes is None:
        raise SettingsError(
            f"dataset.name={data.title}: does not state the shape of its samples or its classes, so"
            " that the model's size is not known before they are opened; the column bytes_up of a"
            " run has it"
        )
    built = settings.model.build(data.shape, data.classes)
    set_base(built, settings.method.moved(built))
    network = network_of(built, settings.method, settings.seed)
    model = state_of(network)
    base = {"model": model}
    layout = Differences.of(base, {"model": "model"}, base).layout
    encoded = Encoded.of(layout, buffer_names(network))
    plain, rows = nbytes(base), []
    for row in _rows(settings):
        up = sent_bytes(declared(row.stages, encoded, 0), plain) if row.up else None
        if up is not None:
            up += beside_of(row.stages, settings.cohort_size).up
        down = expected_bytes(row.stages, model, network) if row.down else None
        (sent, *_) = (size for size in (up, down) if size is not None)
        rows.append(
            {
                "name": row.name,
                "settings": row.written,
                "bytes_up": up,
                "bytes_down": down,
                "of_the_model": sent / plain,
                "description": row.about,
            }
        )
    return rows


class _Row(NamedTuple):
    """Row of the page: stages in order, and the directions in which they are allowed."""

    name: str
    written: str
    stages: Stages
    up: bool
    down: bool
    about: str


def _rows(settings: raysim.Settings) -> Iterator[_Row]:
    """Yield the rows: without stages, through each registered one, through the run's own."""
    yield _Row("none", "", {}, True, True, "The differences as they are.")
    for name in STAGES:
        kind = STAGES.get(name)
        fields = kind.model_fields
        if any(field.is_required() for field in fields.values()):
            continue
        stage = build_component(kind, {}, f"channel.{name}.")
        written = " ".join(f"{key}={as_typed(value)}" for key, value in stage.model_dump().items())
        down = stage.fits_downlink
        yield _Row(name, written, with_effect({name: stage}), True, down, _about(kind))
    for key, stages in (("channel", settings.stages), ("downlink", settings.down_stages)):
        if stages:
            up, about = key == "channel", "The stages of this run, one after another."
            yield _Row(key, ", ".join(stages), stages, up, not up, about)


def _about(kind: type) -> str:
    return (inspect.getdoc(kind) or "").split("\n")[0]
