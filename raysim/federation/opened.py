"""Opened samples: a federation's samples as tensors in one process, on a GPU where they fit.

Where they do not fit, the GPU gets those of a client or of a batch when they are needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysim.api.rules import Batch
from raysim.errors import DataError
from raysim.federation.evaluation_sets import EvaluationSet
from raysim.federation.federation import Federation, open_samples
from raysim.federation.pinned import PinnedRing
from raysim.federation.sequences import lengths_of
from raysim.numbers.arrays import Integers
from raysim.numbers.tensors import aligned
from raysim.numbers.tensors.later import sent_to
from raysim.numbers.tensors.packed import as_tensor
from raysim.samples.arrow import ConcatArray
from raysim.samples.client_indices import Indices
from raysim.samples.data import Split

RESIDENT_FRACTION = 0.15
"""Largest fraction of this process's GPU memory for keeping a set of samples there."""


class OpenedSamples:
    """Samples of a federation as tensors in one process, read-only.

    Attributes:
        device: Where they are trained on.
    """

    def __init__(self, federation: Federation, device: torch.device) -> None:
        """Open the samples.

        Args:
            federation: The federation.
            device: Where they are trained on; a set stays there if it fits into its share.
        """
        self._client_indices = federation.client_indices
        self._root = federation.root[: federation.most]
        self._most = federation.most
        self._holdout = federation.holdout
        self._scoring = federation.scoring
        self._training = federation.training or federation.scoring
        self._inputs = federation.inputs
        self.device = device
        self._splits = {
            "train": _open(federation.train, federation.sequences),
            "test": _open(federation.test, federation.sequences, federation.test_rows),
        }
        if federation.local_test and federation.local_test.samples:
            self._splits["local"] = _open(federation.local_test.samples, federation.sequences)
        self._ring: PinnedRing | None = None
        if device.type == "cuda":
            self._ring = PinnedRing(device)
            for name, split in self._splits.items():
                self._splits[name] = _resident(split, _room(device), device)
        self._shown = self._splits["test" if federation.has_test else "train"]
        self._splits["held_out"] = self._splits["cut"] = self._splits["train"]

    def client(self, client: int) -> Batch:
        """Return one client's training samples, decoded."""
        whole = self._whole(client)._replace(scoring=self._training)
        if self._holdout.fraction:
            whole = _selected(whole, self._holdout.divide(client, len(whole.y))[0])
        return _first(whole, self._most)

    def clients_at_once(self, clients: Sequence[int]) -> list[Batch]:
        """Return the training samples of several clients, decoded together as by `client`."""
        rows = [self._training_rows(client)[: self._most] for client in clients]
        whole, sizes = self._decoded(np.concatenate(rows)), [*map(len, rows)]
        parts = zip(whole.x.split_with_sizes(sizes), whole.y.split_with_sizes(sizes), strict=True)
        batches = [whole._replace(x=x, y=y) for x, y in parts]
        if whole.lengths is None:
            return batches
        lengths = np.split(whole.lengths, np.cumsum(sizes)[:-1])
        return [b._replace(lengths=own) for b, own in zip(batches, lengths, strict=True)]

    @property
    def per_client(self) -> bool:
        """True if inputs of a sample may differ from client to client."""
        return self._inputs.per_client

    @cached_property
    def classes(self) -> int:
        """The largest label of all training samples + 1."""
        return int(self._splits["train"].y.max()) + 1

    def pooled(self, clients: Sequence[int]) -> Batch:
        """Return the training samples of clients, decoded, in the order of the clients."""
        clients = clients[: self._most]
        if self._inputs.per_client:
            batches = [self.client(client) for client in clients]
            return _joined(batches)._replace(scoring=self._training)
        return self._decoded(np.concatenate([self._training_rows(client) for client in clients]))

    def root(self) -> Batch:
        """Return the server's root samples, decoded."""
        return self._decoded(self._root)

    def _decoded(self, rows: Indices) -> Batch:
        """Return training samples by their numbers [n], decoded."""
        x, y, lengths = self._splits["train"].take(torch.from_numpy(rows), self._ring)
        return self._batch(self._inputs.decode(x), y, lengths)._replace(scoring=self._training)

    def _training_rows(self, client: int) -> Indices:
        """Return the numbers of a client's training samples."""
        held = self._client_indices[client]
        return held[self._holdout.divide(client, len(held))[0]] if self._holdout.fraction else held

    def check(self) -> None:
        """Check that there are test samples, and try the input pipeline on two of them.

        Raises:
            DataError: there are no test samples.
            SettingsError: dataset or partition fails.
        """
        x, *_ = self._shown.take(slice(0, 2), self._ring)
        if not len(x):
            raise DataError("the test set has no samples; must have at least one")
        self._inputs.check(x, torch.arange(len(x)))

    def first(self, count: int) -> Batch:
        """Return the first test samples, or the first training samples if there are none."""
        x, y, lengths = self._shown.take(slice(0, count), self._ring)
        rows = self._shown.numbers(torch.arange(len(y)))
        return self._batch(self._inputs.test(x, rows), y, lengths)

    def of_clients(self, samples: EvaluationSet, number: int) -> Batch:
        """Return the samples of one batch of an evaluation set."""
        first, last = samples.cuts[number : number + 2].tolist()
        split = self._splits[samples.split]
        if not self._inputs.per_client:
            offsets = samples.samples.offsets
            rows = samples.samples.indices[offsets[first] : offsets[last]]
            x, y, lengths = split.take(torch.from_numpy(rows), self._ring)
            return self._batch(self._inputs.decode(x), y, lengths)
        return _joined([self.of_client(samples, position) for position in range(first, last)])

    def test(self, start: int, stop: int) -> Batch:
        """Return a range of test samples, decoded; of a task, its own array of inputs."""
        samples = self._splits["test"]
        stop = stop if self._most is None else min(stop, start + self._most)
        x, y, lengths = samples.take(slice(start, stop), self._ring)
        rows = samples.numbers(torch.arange(start, start + len(y)))
        return self._batch(self._inputs.test(x, rows), y, lengths)

    def _batch(self, x: Tensor, y: Tensor, lengths: Integers | None) -> Batch:
        return Batch(x, self._inputs.cast(y), scoring=self._scoring, lengths=lengths)

    def _whole(self, client: int) -> Batch:
        """Return all samples of one client, transformed for it."""
        held = self._client_indices[client]
        rows, first, last = torch.from_numpy(held), int(held[0]), int(held[-1])
        consecutive = last - first + 1 == len(held) and bool((np.diff(held) == 1).all())
        taken = slice(first, last + 1) if consecutive else rows
        x, y, lengths = self._splits["train"].take(taken, self._ring)
        return self._batch(self._inputs.client(x, rows, client), y, lengths)

    def of_client(self, samples: EvaluationSet, position: int) -> Batch:
        """Return one client's evaluated samples, transformed for it."""
        client = int(samples.clients[position])
        if samples.split == "train":
            return self.client(client)._replace(scoring=self._scoring)
        if samples.split == "held_out":
            whole = self._whole(client)
            return _selected(whole, self._holdout.divide(client, len(whole.y))[1])
        rows = torch.from_numpy(samples.samples[position])
        split = self._splits[samples.split]
        x, y, lengths = split.take(rows, self._ring)
        return self._batch(self._inputs.client(x, split.numbers(rows), client), y, lengths)


def _first(whole: Batch, most: int | None) -> Batch:
    lengths = None if whole.lengths is None else whole.lengths[:most]
    return whole._replace(x=whole.x[:most], y=whole.y[:most], lengths=lengths)


def _joined(batches: Sequence[Batch]) -> Batch:
    x, y = torch.cat([each.x for each in batches]), torch.cat([each.y for each in batches])
    lengths = [each.lengths for each in batches if each.lengths is not None]
    return batches[0]._replace(x=x, y=y, lengths=np.concatenate(lengths) if lengths else None)


def _selected(whole: Batch, positions: Indices) -> Batch:
    chosen = sent_to(whole.y.device, positions)
    lengths = None if whole.lengths is None else whole.lengths[positions]
    return whole._replace(x=_rows(whole.x, chosen), y=_rows(whole.y, chosen), lengths=lengths)


def _rows(values: Tensor, rows: Tensor) -> Tensor:
    """Return rows of a tensor; indexing took 28 times as long on 600 images of bytes."""
    return values.index_select(0, rows)


@dataclass(frozen=True)
class _Samples:
    """Raw inputs [N, ...] and targets [N, ...]; inputs in several files are read on demand.

    Attributes:
        x: The inputs.
        y: The targets.
        chosen: Numbers of the chosen samples [n]; None: all N.
        lengths: Lengths of padded sequences [N], on the host; None: inputs are none.
    """

    x: Tensor | ConcatArray
    y: Tensor
    chosen: Tensor | None = None
    lengths: Integers | None = None

    def numbers(self, rows: Tensor) -> Tensor:
        """Return the numbers, among all N samples, of some of these samples."""
        return rows if self.chosen is None else self.chosen[rows]

    def take(
        self, rows: slice | Tensor, ring: PinnedRing | None
    ) -> tuple[Tensor, Tensor, Integers | None]:
        """Return the inputs and targets of some samples, on the device, and sequences' lengths.

        Inputs are aligned, as the address of a user's own array differs from process to process.

        Args:
            rows: The samples.
            ring: Brings samples from the host to a GPU. None leaves them where they are.
        """
        if self.chosen is not None:
            rows = self.chosen[rows]
        numbers = rows if isinstance(rows, slice) else rows.numpy()
        lengths = None if self.lengths is None else self.lengths[numbers]
        if ring and not self.y.is_cuda:
            return _brought(self.x, rows, ring), _brought(self.y, rows, ring), lengths
        if isinstance(rows, slice):
            return aligned(_part(self.x, rows)), self.y[rows], lengths
        rows = sent_to(self.y.device, rows.numpy())
        return _part(self.x, rows), _rows(self.y, rows), lengths


def _part(values: Tensor | ConcatArray, rows: slice | Tensor) -> Tensor:
    """Return some samples where they are; a slice of a tensor is a view."""
    if isinstance(values, ConcatArray):
        return as_tensor(values[rows if isinstance(rows, slice) else rows.numpy()])
    return values[rows] if isinstance(rows, slice) else _rows(values, rows)


def _brought(values: Tensor | ConcatArray, rows: slice | Tensor, ring: PinnedRing) -> Tensor:
    """Return some samples of the host on the GPU."""
    if isinstance(values, Tensor) and isinstance(rows, Tensor):
        return ring.to_device(values, rows)
    return ring.to_device(_part(values, rows))


def _open(split: Split | Path, sequences: bool, rows: Indices | None = None) -> _Samples:
    opened = open_samples(split)
    x: Any = opened.x  # an array, or `ConcatArray`
    chosen = None if rows is None else torch.from_numpy(rows)
    lengths = lengths_of(x) if sequences else None
    x = x if isinstance(x, ConcatArray) else as_tensor(x)
    return _Samples(x, as_tensor(opened.y), chosen, lengths)


def memory_cap(device: torch.device) -> int:
    """Return the most bytes of a GPU for this process's tensors; a worker's set-up caps it."""
    total = torch.cuda.get_device_properties(device).total_memory
    return int(torch.cuda.get_per_process_memory_fraction(device) * total)


def _room(device: torch.device) -> float:
    """Return the most bytes of a GPU for a set of samples."""
    cap, (free, _) = memory_cap(device), torch.cuda.mem_get_info(device)
    return min(RESIDENT_FRACTION * cap, cap - torch.cuda.memory_allocated(device), free)


def _resident(split: _Samples, room: float, device: torch.device) -> _Samples:
    """Move samples to the device if they take at most `room` bytes of its memory."""
    fits = math.prod(split.x.shape) * split.x.dtype.itemsize <= room
    if not fits:
        return split
    return replace(split, x=_part(split.x, slice(None)).to(device), y=split.y.to(device))
