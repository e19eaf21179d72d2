"""Page of `raysim list stages --of RUN`: the bytes that a client sends of a run's model."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from rich.table import Table

import raysim
from raysim.channel import STAGES
from raysim.core.channel import Stages, encoded_by, with_effect
from raysim.core.components import build_component
from raysim.core.encoding import Encoding
from raysim.core.errors import SettingsError
from raysim.core.tensors import Layout, flatten, frozen_names, state_of


def page(source: str) -> Table:
    """Return the table of all stages, with the bytes that a client sends through each.

    Args:
        source: A preset, or a file of settings.

    Raises:
        SettingsError: the size of the model is not known before its data are opened.
    """
    settings = raysim.load_config(source)
    layout = layout_of(settings)
    table = Table(
        *("name", "settings", "bytes up", "of the model", "description"),
        title=f"stages, for the model of {source}: what a client sends by FedAvg",
        title_justify="left",
        box=None,
    )
    plain = Encoding.of(layout).nbytes
    for name, written, stages, about in _rows(settings.stages):
        encoding = Encoding.of(layout)
        for stage in stages.values():
            encoding = encoded_by(stage, encoding, layout, 0)
        share = f"{encoding.nbytes / plain:.2%}"
        table.add_row(name, written, str(encoding.nbytes), share, about)
    return table


def layout_of(settings: raysim.Settings) -> Layout:
    """Return the layout of the differences of a run's model.

    Raises:
        SettingsError: the dataset does not state its shape and classes.
    """
    data = settings.data
    if data.shape is None or data.classes is None:
        raise SettingsError(
            f"dataset.name={data.title}: does not state the shape of its samples or its classes, so"
            " that the model's size is not known before they are opened; the column bytes_up of a"
            " run has it"
        )
    network = settings.method.network(settings.model.build(data.shape, data.classes))
    frozen = frozen_names(network)
    sent = {
        name: tensor
        for name, tensor in state_of(network).items()
        if name not in frozen and (tensor.is_floating_point() or tensor.is_complex())
    }
    return Layout.of(flatten({"model": sent}))


def _rows(own: Stages) -> Iterator[tuple[str, str, Stages, str]]:
    """Yield name, settings, stages and description: none, each registered one, the run's own."""
    yield "none", "", {}, "The differences as they are."
    for name in STAGES:
        kind = STAGES.get(name)
        fields = kind.model_fields
        if any(field.is_required() for field in fields.values()):
            continue
        stage = build_component(kind, {}, f"channel.{name}.")
        written = " ".join(f"{key}={value}" for key, value in stage.model_dump().items())
        yield name, written, with_effect({name: stage}), _about(kind)
    if own:
        yield "channel", ", ".join(own), own, "The stages of this run, one after another."


def _about(kind: type) -> str:
    return (inspect.getdoc(kind) or "").split("\n")[0]
