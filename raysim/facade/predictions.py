"""Predictions of a run's model for new data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from raysim import methods, workloads  # noqa: F401 - registers the components
from raysim.api.components import call
from raysim.api.generation import likeliest_tokens, places_of
from raysim.api.scoring import FORWARD_TOKENS
from raysim.config import Settings, parse
from raysim.errors import DataError, RunError
from raysim.facade.recorded import client_model
from raysim.federation.federation import sample_dtype
from raysim.numbers.arrays import Array
from raysim.numbers.tensors.packed import as_tensor
from raysim.samples.data import Dataset
from raysim.samples.preparation import Preparation
from raysim.storage.plugins import Plugins
from raysim.storage.run_directory import RunDirectory
from raysim.user_input import user_path
from raysim.user_input.user_modules import leave_out_working_directory
from raysim.workloads.datasets.fetch import data_root
from raysim.workloads.datasets.files.applied import (
    ArraysOfRun,
    ColumnsOfRun,
    NewRows,
    TextOfRun,
)
from raysim.workloads.datasets.files.source import as_words, shown

if TYPE_CHECKING:
    from raysim.driver.listeners.listener import Listener

ROWS = 1000
"""Samples of a forward pass."""
ANSWER_TOKENS = 64
"""Most tokens that a language model writes after a prompt."""
PREDICTION, PROBABILITY = "prediction", "p_"
"""Column of predictions, and beginning of the names of columns of classes' probabilities."""


def predict(
    run_dir: str | Path,
    data: str | Path,
    client: int | str | None = None,
    listener: Listener | None = None,
) -> pa.Table:
    """Return the predictions of a run's model for the rows of a file, next to their own columns.

    Args:
        run_dir: The run directory of a finished run.
        data: A file or folder in one of the formats of `dataset.path`; it needs no target.
        client: The client whose own model predicts, by number or name; None: the global model.
        listener: Told about model and data.

    Raises:
        RaysimError: the run is unfinished, has no model or no stored preparation, or the rows do
            not fit it.
    """
    model = TrainedModel.of(user_path(run_dir), client, listener)
    return pa.Table.from_batches([*model.predictions(user_path(data))])


@dataclass(frozen=True)
class TrainedModel:
    """Trained network of a run, and how data becomes its inputs.

    Attributes:
        run: The run directory.
        settings: The run's settings.
        preparation: How data becomes inputs.
        network: The network, in evaluation mode.
        columns: The columns that it was trained on.
        listener: Told about model and data.
    """

    run: Path
    settings: Settings
    preparation: Preparation
    network: nn.Module
    columns: ColumnsOfRun
    listener: Listener

    @classmethod
    def of(cls, run: Path, client: int | str | None, listener: Listener | None = None) -> Self:
        """Return the model of a run.

        Args:
            run: The run directory.
            client: The client whose own model it is; None: the global model.
            listener: Told about model and data.

        Raises:
            RunError: the run is unfinished, or has no model, no stored preparation or its own task.
        """
        leave_out_working_directory(run)
        from raysim.driver.evaluation.loading import load_network
        from raysim.driver.listeners.listener import Listener

        listener = listener or Listener()
        directory = RunDirectory(run)
        Plugins(run).check_recorded(force=False)
        raw, own_task = directory.read_config(listener.note)
        if own_task:
            raise RunError(f"{run}: this run had its own task; raysim.load returns its network")
        settings = parse(raw)
        directory.check_finished(settings, own_task)
        if (stored := directory.read_preparation()) is None:
            raise RunError(
                f"{directory.preparation}: not there: it is lost, or an earlier version of raysim"
                " ran it; run it again in another `out`"
            )
        own = None if client is None else client_model(run, client, listener=listener)
        network = load_network(run, None, data_root, listener.note, best=False, own=own)
        return cls(run, settings, stored, network, _columns(directory, stored), listener)

    @property
    def text(self) -> TextOfRun | None:
        """The column of text, if the model has read one."""
        return next((c for c in self.columns.columns if isinstance(c, TextOfRun)), None)

    def predictions(self, data: Path) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file or folder, in order, with their predictions.

        Raises:
            DataError: there are no rows, a column is missing, or a value does not fit.
        """
        size = getattr(self.settings.dataset, "image_size", None)
        places = places_of(self.network)
        rows = NewRows.of(data, self.columns, self.preparation.stored, size, places)
        names: list[str] | None = None
        empty = True
        for batch, there, x in rows:
            words = {name: _words(batch[name]) for name in rows.told}
            names = names or [name for name, values in words.items() if values is not None]
            none = pa.nulls(len(batch), pa.string())
            told = {name: none if words[name] is None else words[name] for name in names}
            predicted = self._predicted(there, x)
            if taken := [name for name in predicted if name in told]:
                raise DataError(
                    f"{data}: has a column {shown(taken[0])}, as the predictions have; rename it"
                )
            empty = False
            yield pa.record_batch({**told, **predicted})
        if empty:
            raise DataError(f"{data}: has no rows")
        for line in rows.notes():
            self.listener.note(line)

    def _predicted(self, there: Array, x: Array) -> dict[str, pa.Array]:
        """Return the columns of predictions for rows [n], empty where a row has no inputs."""
        if self.columns.is_language:
            return {PREDICTION: _spread(self._answers(x), there)}
        parts = [self.outputs(x[start : start + ROWS]) for start in range(0, len(x), ROWS)]
        outputs = torch.cat(parts) if parts else torch.empty(0, self.preparation.outputs)
        if not self.settings.dataset.scoring.classifies:
            values = outputs.reshape(len(outputs), -1).numpy()
            several = values.shape[1] > 1
            names = [f"{PREDICTION}_{n}" if several else PREDICTION for n in range(values.shape[1])]
            return {n: _spread(v, there) for n, v in zip(names, values.T, strict=True)}
        if outputs.dim() != 2:
            raise RunError(f"{self.run}: a sample has outputs of shape {[*outputs.shape[1:]]}")
        probabilities = outputs.softmax(dim=1).numpy()
        names = [*self.preparation.classes] or [str(n) for n in range(probabilities.shape[1])]
        best = np.array(names, dtype=object)[probabilities.argmax(axis=1)]
        of_classes = zip(names, probabilities.T, strict=True)
        return {
            PREDICTION: _spread(best, there),
            **{f"{PROBABILITY}{name}": _spread(values, there) for name, values in of_classes},
        }

    def _answers(self, x: Array) -> Array:
        """Return the texts that a language model writes after tokens [n, T]."""
        data, rows = self.settings.data, max(FORWARD_TOKENS // (x.shape[1] + ANSWER_TOKENS), 1)
        texts, ends = list[str](), call(data, Dataset.end_tokens)
        for start in range(0, len(x), rows):
            asked = self.decoded(x[start : start + rows])
            asked = asked[:, : int((asked >= 0).sum(1).max())]
            with torch.no_grad():
                tokens = likeliest_tokens(
                    self.network, asked, ANSWER_TOKENS, ends=ends, places=places_of(self.network)
                ).numpy()
            texts += call(data, Dataset.as_text, tokens)
        return np.array(texts, dtype=object)

    def outputs(self, x: Array) -> Tensor:
        """Return the network's outputs for stored samples [n, ...], in the targets' unit."""
        with torch.no_grad():
            outputs: Tensor = self.network(self.decoded(x))
        return outputs.float()

    def decoded(self, x: Array) -> Tensor:
        """Return the network's inputs for stored samples [n, ...]."""
        decoded: Tensor = call(self.settings.data, Dataset.decode, as_tensor(x).clone())
        dtype = sample_dtype(self.network)
        return decoded.to(dtype) if decoded.is_floating_point() else decoded


def _columns(directory: RunDirectory, stored: Preparation) -> ColumnsOfRun:
    """Return the columns that a run was trained on.

    Raises:
        RunError: they are damaged.
    """
    try:
        if stored.columns:
            return ColumnsOfRun.read(stored.columns)
        is_whole = np.dtype(stored.dtype).kind == "i"
        array = ArraysOfRun(name="x", dtype=stored.dtype, categories=is_whole)
        return ColumnsOfRun(columns=[array])
    except (ValueError, TypeError) as error:
        raise RunError(f"{directory.preparation}: is damaged ({error}); restore it") from error


def _words(values: pa.Array) -> pa.Array | None:
    """Return the values of a column as words; None if they are no single values."""
    try:
        return as_words(values)
    except pa.ArrowException:
        return None


def _spread(values: Any, there: Array) -> pa.Array:
    """Return values of the rows that have inputs, among all rows [n]."""
    indices = np.where(there, np.cumsum(there) - 1, -1)
    kind = pa.string() if values.dtype == object else None  # of no rows, too
    return pa.array(values, kind).take(pa.array(indices, mask=~there))
