"""Exports of a run's model for other programs, with a model card.

Programs are of plain PyTorch and ONNX. Folders for transformers and peft hold pretrained networks.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from raysim.api.components import called
from raysim.errors import RunError, SettingsError, visible
from raysim.facade.model_card import card
from raysim.facade.predictions import TrainedModel
from raysim.storage.atomic import replace_folder, write_json
from raysim.storage.checkpoints import MODEL, save_tensors
from raysim.workloads.models.pretrained.extra import check_extra
from raysim.workloads.models.pretrained.model import HuggingFace

if TYPE_CHECKING:
    from raysim.workloads.models.stages import Staged

TOLERANCE = 1e-5
"""Largest difference of an exported model's outputs from the network's, by their size or 1."""
PROGRAM, GRAPH = "model.pt2", "model.onnx"
INPUTS, OUTPUTS = "inputs", "outputs"
"""Names of a graph's input and output."""
ONNX = ("onnx", "onnxruntime", "onnxscript")
Arguments = Mapping[str, Any]
"""Arguments with which transformers reads the base of adapters; none elsewhere."""
TOKENS = 16
"""Most tokens in the rows that check a pretrained network."""


def check_format(name: str) -> None:
    """Check that a format is known, and what it needs installed.

    Raises:
        SettingsError: it is not.
    """
    if name == "onnx" and (lacking := [package for package in ONNX if not find_spec(package)]):
        raise SettingsError(f"--to=onnx: needs {lacking[0]}: pip install 'raysim-fl[onnx]'")
    if name in OF_PRETRAINED:
        check_extra(f"--to={name}")


def export(model: TrainedModel, to: str, out: Path, about: str) -> None:
    """Write a model, its card, its settings and its preparation as a new folder.

    Args:
        model: The model.
        to: A key of FORMATS.
        out: The folder.
        about: Whose model it is, in words.

    Raises:
        RunError: the network cannot be exported, or the export computes other outputs.
        MachineError: the folder cannot be written.
    """
    example = _example(model)

    def write(folder: Path) -> None:
        arguments = FORMATS[to](model, example, folder)
        settings = {k: v for k, v in model.settings.to_dict().items() if k != "out"}
        write_json(folder / "settings.json", settings)
        write_json(folder / "preparation.json", model.preparation.to_json())
        text = card(model, to, about, arguments, example)
        (folder / "README.md").write_text(text, encoding="utf-8")

    replace_folder(out, write)


def _example(model: TrainedModel) -> Tensor:
    """Return two inputs of the network: random numbers, or zeros where inputs are whole."""
    stored = np.zeros((2, *model.preparation.stored), np.dtype(model.preparation.dtype))
    decoded = model.decoded(stored)
    if not decoded.is_floating_point():
        return decoded
    generator = torch.Generator().manual_seed(0)
    return torch.rand(decoded.shape, generator=generator, dtype=decoded.dtype)


def _program(model: TrainedModel, example: Tensor) -> ExportedProgram:
    """Return the network as a program of torch.export, for batches of any size.

    Raises:
        RunError: the network cannot be traced, or the program computes other outputs.
    """
    with _exporting(model, "torch.export"):
        batch = ({0: Dim("batch", min=1)},)
        program = torch.export.export(model.network, (example,), dynamic_shapes=batch)
    module = program.module()
    _check(model, example, "torch.export", module)
    return program


@contextmanager
def _exporting(model: TrainedModel, by: str) -> Iterator[None]:
    """Silence an exporter, and turn its errors into one line.

    Raises:
        RunError: the body fails.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            redirect_stdout(StringIO()),
            redirect_stderr(StringIO()),
            torch.no_grad(),
        ):
            yield
    except Exception as error:  # networks and exporters raise errors of many types
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise RunError(
            f"{model.run}: its network cannot be exported by {by}: {visible(first)}; raysim.load"
            " returns it as a module"
        ) from error
    finally:
        logging.disable(before)


def _check(
    model: TrainedModel, example: Tensor, by: str, compute: Callable[[Tensor], Tensor]
) -> None:
    """Check that an export computes the network's outputs, for one sample and for more.

    Raises:
        RunError: it does not.
    """
    for x in (example[:1], example, torch.cat([example, example[:1]])):
        with torch.no_grad():
            expected, found = model.network(x), compute(x)
        size = max(float(expected.abs().max()), 1.0)
        difference = float((expected - found).abs().max()) / size
        if not difference <= TOLERANCE:
            raise RunError(
                f"{model.run}: the model exported by {by} computes other outputs: they differ by"
                f" {difference:.2g} of their size; at most {TOLERANCE:g} are allowed"
            )


def _torch(model: TrainedModel, example: Tensor, folder: Path) -> Arguments:
    """Write the program of torch.export, and the network's state_dict."""
    torch.export.save(_program(model, example), folder / PROGRAM)
    save_tensors(folder / MODEL, model.network.state_dict())
    return {}


def _onnx(model: TrainedModel, example: Tensor, folder: Path) -> Arguments:
    """Write an ONNX graph, and check it in ONNX Runtime."""
    import onnxruntime

    program = _program(model, example)
    with _exporting(model, "torch.onnx"):
        torch.onnx.export(
            program,
            (example,),
            str(folder / GRAPH),
            input_names=[INPUTS],
            output_names=[OUTPUTS],
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    session = onnxruntime.InferenceSession(str(folder / GRAPH))

    def compute(x: Tensor) -> Tensor:
        return torch.as_tensor(session.run(None, {INPUTS: x.numpy()})[0])

    _check(model, example, "torch.onnx", compute)
    return {}


def _huggingface(model: TrainedModel, example: Tensor, folder: Path) -> Arguments:
    """Write the network with its adapters merged, and check it in transformers."""
    from raysim.workloads.models.pretrained.writing import example_of, write_whole

    settings, network = _pretrained(model, "huggingface")
    padding, stored = _write_tokenizer(model, settings, network, folder), model.preparation
    compute = write_whole(
        settings, network, stored.outputs, stored.classes, folder, padding=padding
    )
    rows = example_of(network, min(example.shape[1], TOKENS), padding)
    _check(model, rows, "transformers", compute)
    return {}


def _peft(model: TrainedModel, example: Tensor, folder: Path) -> Arguments:
    """Write adapters, and check them in peft."""
    from raysim.workloads.models.pretrained.writing import arguments, example_of, write_adapters

    settings, network = _pretrained(model, "peft")
    if not settings.lora.rank or settings.random:
        why = "model.random: the base's drawn weights are in no file"
        if not settings.lora.rank:
            why = "model.lora.rank=0, so that there are no adapters"
        raise RunError(f"{model.run}: --to=peft: {why}; --to=huggingface writes the whole network")
    padding, outputs = _write_tokenizer(model, settings, network, folder), model.preparation.outputs
    compute = write_adapters(settings, network, outputs, model.run, folder, padding=padding)
    _check(model, example_of(network, min(example.shape[1], TOKENS), padding), "peft", compute)
    return arguments(settings, network, outputs, padding)


def _write_tokenizer(
    model: TrainedModel, settings: HuggingFace, network: Staged, folder: Path
) -> int:
    """Write the tokeniser of a run, if there is one; return the token that fills rows.

    Raises:
        RunError: a decoder that classifies needs such a token, and there is none.
    """
    from raysim.workloads.models.pretrained.writing import padding_of, tokenizer_for

    tokenizer = tokenizer_for(network, model.text.tokenizer if model.text else settings.path)
    padding = padding_of(network, tokenizer)
    if padding is None:
        raise RunError(
            f"{model.run}: transformers needs a token for padding that ends no text, and the"
            f" tokeniser of {settings.path} has none; raysim.load returns the network as a module"
        )
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return padding


def _pretrained(model: TrainedModel, to: str) -> tuple[HuggingFace, Staged]:
    """Return the settings of a pretrained network, and the network in float32.

    Raises:
        RunError: the run's network is none, or holds what such a folder has no place for.
    """
    from raysim.workloads.models.pretrained.writing import is_plain

    settings, network = model.settings.model, model.network
    if not isinstance(settings, HuggingFace):
        raise RunError(
            f"{model.run}: --to={to}: needs a run of a pretrained network (model.name=huggingface),"
            f" and this is one of {called(settings)}; use --to=torch"
        )
    advice = "raysim.load returns the network as a module"
    if settings.prompt:
        raise RunError(
            f"{model.run}: --to={to}: has no place for the vectors of a prompt"
            f" (model.prompt={settings.prompt}); {advice}"
        )
    if not is_plain(network):
        raise RunError(
            f"{model.run}: --to={to}: has no place for what {called(model.settings.method)} adds to"
            f" the network; {advice}"
        )
    return settings, network.float()


OF_PRETRAINED = {"huggingface": _huggingface, "peft": _peft}
"""Formats of pretrained networks alone."""
FORMATS: Mapping[str, Callable[[TrainedModel, Tensor, Path], Arguments]] = {
    "torch": _torch,
    "onnx": _onnx,
    **OF_PRETRAINED,
}
"""Formats of folders, with what writes the model, and returns how to load what it belongs to."""
