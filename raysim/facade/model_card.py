"""Model card of an exported model, in the form that model hubs show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

import raysim
from raysim.api.components import called
from raysim.errors import visible
from raysim.facade import base_card
from raysim.storage.checkpoints import TRAINING_SAMPLES, Checkpoints
from raysim.storage.run_directory import RunDirectory
from raysim.user_input import parse_json
from raysim.workloads.datasets.files.applied import (
    ArraysOfRun,
    ColumnsOfRun,
    NumbersOfRun,
    TextOfRun,
)
from raysim.workloads.datasets.files.dates import shown_forms
from raysim.workloads.models.pretrained.model import HuggingFace

if TYPE_CHECKING:
    from raysim.facade.predictions import TrainedModel

MOST_NAMES = 50
"""Most classes or words that the card names; `preparation.json` has all."""
USES = {
    "torch": """\
```python
import torch

network = torch.export.load("model.pt2").module()
outputs = network(torch.zeros(1, {shape}, dtype={dtype}))
```

`model.safetensors` has the same weights as a state_dict. Torch reads `model.pt2` by its own rules,
which may unpickle parts: load it only if you trust where it comes from.
""",
    "onnx": """\
```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
(outputs,) = session.run(None, {{"inputs": np.zeros((1, {shape}), "{name}")}})
```
""",
}


def card(
    model: TrainedModel,
    to: str,
    about: str,
    arguments: Mapping[str, Any],
    example: Tensor,
) -> str:
    """Return the model card.

    Args:
        model: The model.
        to: Its format, a key of USES or of `base_card.USES`.
        about: Whose model it is, in words.
        arguments: Arguments with which transformers reads the base of adapters.
        example: Inputs of the network.
    """
    dtype, shape = example.dtype, example.shape[1:]
    settings, name = model.settings, str(dtype).removeprefix("torch.")
    network = settings.model if isinstance(settings.model, HuggingFace) else None
    if network and to in base_card.USES:
        use = base_card.use_of(model, network, to, arguments)
    else:
        use = USES[to].format(shape=", ".join(map(str, shape)), dtype=dtype, name=name)
    header = base_card.header_of(network) if network else {}
    sections = {
        "Use": use.rstrip(),
        **({"Base": _plain(base_card.about_base(network))} if network else {}),
        "Inputs": "\n".join(_inputs(model, shape, name)),
        "Outputs": "\n".join(_outputs(model)),
        "Data": "\n".join(_data(model)),
        "Training": "\n".join(_training(model)),
        "Metrics": "\n".join(_metrics(model)),
        "Licence and limits": (
            f"{_licence(header)}, and the data may set conditions. The federation was simulated."
            " Nothing here says that the model is fair, safe or private beyond the metrics above."
        ),
    }
    lines = "\n".join(f"{key}: {value}" for key, value in {"license": "unknown", **header}.items())
    head = (
        f"---\n{lines}\ntags:\n- federated-learning\n- raysim\n---\n\n"
        f"# {_plain(model.run.resolve().name)}\n\n{about} of a federated learning run:"
        f" `{called(settings.method)}`, simulated with raysim {raysim.__version__}."
    )
    return (
        "\n\n".join([head, *(f"## {title}\n\n{text}" for title, text in sections.items())]) + "\n"
    )


def _licence(header: Mapping[str, str]) -> str:
    if of_base := header.get("license"):
        return (
            f"The licence of the base is {of_base}, which the head of this card repeats: the author"
            " of this model has to state its own"
        )
    return "The licence is unknown: the author of this model has to state it"


def _inputs(model: TrainedModel, shape: Sequence[int], dtype: str) -> Iterator[str]:
    sizes = ", ".join(map(str, shape))
    yield f"An array of {dtype}, [batch, {sizes}], made of these columns in order:"
    yield ""
    yield from (f"- {line}" for line in _columns(model.columns))
    if any(isinstance(column, ArraysOfRun) for column in model.columns.columns):
        group = f"`dataset` {_code(model.settings.dataset.title)}"
        yield f"- arrays are then decoded as {group} in `settings.json` says; bytes become numbers"
    yield ""
    missing = {
        "refuse": "must not be missing",
        "drop": "must not be missing",
        "mean": "that are missing become the mean",
        "zero": "that are missing become 0",
    }[model.columns.missing]
    yield f"Values {missing}. `preparation.json` has all figures; `raysim predict` applies them."


def _columns(columns: ColumnsOfRun) -> Iterator[str]:
    """Yield how each column becomes inputs."""
    for column in columns.columns:
        name = _code(column.name)
        if isinstance(column, NumbersOfRun):
            what = "number"
            if column.form is not None:
                form = shown_forms(((column.form,),))
                what = f"month, weekday (Monday is 0) and hour of a date ({form})"
            if column.standardise:
                figures = column.figures.made
                pairs = zip(figures.mean.tolist(), figures.deviation.tolist(), strict=True)
                what += ", " + "; ".join(f"less {mean:.6g}, by {by:.6g}" for mean, by in pairs)
            yield f"{name}: {what}"
        elif isinstance(column, ArraysOfRun):
            yield f"{name}: array of {column.dtype}"
        elif isinstance(column, TextOfRun):
            tokeniser = f"{_code(base_card.shown(column.tokenizer))}, sha256 {column.digest[:12]}"
            yield f"{name}: text, the first {column.length} tokens ({tokeniser})"
        else:
            yield f"{name}: 1 for its word and 0 for others, of {_listed(column.words)}"


def _outputs(model: TrainedModel) -> Iterator[str]:
    stored = model.preparation
    if model.columns.is_language:
        yield "Logits [batch, tokens, vocabulary] of the next token."
    elif model.settings.dataset.scoring.classifies:
        yield f"Logits [batch, {stored.outputs}]; softmax gives probabilities."
        if stored.classes:
            yield f"Classes in order: {_listed(stored.classes)}."
    else:
        yield f"Numbers [batch, {stored.outputs}], in the unit of the target."


def _data(model: TrainedModel) -> Iterator[str]:
    settings = model.settings
    yield f"- data set: {_code(called(settings.dataset))}"
    for key in ("target", "client"):
        if value := getattr(settings.dataset, key, None):
            yield f"- {key}: {_code(value)}"
    yield f"- partition: {_code(called(settings.partition))}, {settings.clients} clients"
    digest = Checkpoints(RunDirectory(model.run).checkpoints).identity().get(TRAINING_SAMPLES)
    if digest:
        yield f"- sha256 of the prepared training samples: `{digest}`"


def _training(model: TrainedModel) -> Iterator[str]:
    settings, local = model.settings, model.settings.local
    rounds = f"round {_summary(model)['rounds']} of {settings.rounds}"
    yield f"- {rounds}, {settings.cohort_size} clients a round"
    yield f"- method: {_code(called(settings.method))}"
    yield (
        f"- local training: {local.work_in_words}, batches of {local.batch_size},"
        f" {_code(called(local.build_optimizer()))}, learning rate {local.lr:g}"
    )
    yield f"- network: {_code(called(settings.model))}, seed {settings.seed}"
    yield "- all settings: `settings.json`"


def _metrics(model: TrainedModel) -> Iterator[str]:
    """Yield the figures of the run's summary; they are the global model's."""
    figures = {k: v for k, v in _summary(model).items() if isinstance(v, int | float)}
    yield "Of the global model, from the run's `summary.json`:"
    yield ""
    yield "| figure | value |"
    yield "|---|---|"
    for name, value in figures.items():
        if not isinstance(value, bool) and math.isfinite(value):
            yield f"| `{_plain(name)}` | {value:.6g} |"


def _summary(model: TrainedModel) -> dict[str, Any]:
    return dict(parse_json(RunDirectory(model.run).summary.read_text("utf-8")))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(map(_code, names[:MOST_NAMES])) + more


def _plain(text: object) -> str:
    """Return a text without marks of Markdown, on one line."""
    return visible(str(text)).translate({ord(mark): None for mark in "`|<>[]*"})


def _code(text: object) -> str:
    return f"`{_plain(text) or ' '}`"
