"""FLOPs of local training: counted by torch's formulas, once per kind of pass, on few samples.

The sequential trainer takes the steps, so frozen groups, second streams and further gradients are
counted as the method runs them; `Rules.finish` is counted with its client's samples. torch counts
matrix products and convolutions, an M x K matrix times a K x N matrix as 2*M*K*N.

The FLOPs of a step are a quadratic polynomial in the batch size (a loss may compare all pairs of
samples), the FLOPs of `finish` in the client's samples: three counts determine it. If FLOPs depend
on values, for example of a client's state, the first counted client decides; checkpoints seal the
counts.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import nn

from raysim.api.differences import Differences
from raysim.api.rules import Batching, LocalSteps, LocalWork, Pass, Upload
from raysim.config import LocalSettings
from raysim.numbers.arrays import Floats, Integers
from raysim.numbers.tensors import CPU, Layout, flatten
from raysim.numbers.tensors.torch_private import watch_operations, without_mkldnn
from raysim.training.job import ClientJob, batch_bounds
from raysim.training.network import Network
from raysim.training.rule_keys import key_of_function, key_of_rules
from raysim.training.sequential import SequentialTrainer

FEW = 2
"""Samples of the first of three counts; BatchNorm needs two."""
DTYPES = {str(each): each for each in vars(torch).values() if isinstance(each, torch.dtype)}


@dataclass(frozen=True)
class Polynomial:
    """Quadratic polynomial through its values at FEW, FEW + 1 and FEW + 2."""

    values: tuple[int, int, int]

    def at(self, n: Floats) -> Floats:
        """Return the values at n [...], by Newton's forward differences."""
        first, second, third = self.values
        d, x = second - first, n - FEW
        values: Floats = first + x * d + x * (x - 1) / 2 * (third - second - d)
        return values


@dataclass(frozen=True)
class KindFlops:
    """FLOPs of one kind of pass.

    Attributes:
        step: FLOPs of a step, by the samples of its batch.
        finish: FLOPs before and after the steps, by the client's samples.
        bytes_up: Bytes that every client sends, without those of `Pass.bytes_up`.
        differences: Layout of the tensors in an upload that the channel's stages change.
    """

    step: Polynomial
    finish: Polynomial
    bytes_up: int
    differences: Layout

    def to_json(self) -> list[Any]:
        """Return this as JSON."""
        layout = [(n, str(dtype), list(shape)) for n, dtype, shape in self.differences.entries]
        return [self.step.values, self.finish.values, self.bytes_up, layout]

    @classmethod
    def of_json(cls, values: list[Any]) -> KindFlops:
        """Undo `to_json`."""
        step, finish, bytes_up, layout = values
        entries = ((n, DTYPES[dtype], torch.Size(shape)) for n, dtype, shape in layout)
        return cls(
            *(Polynomial(tuple(step)), Polynomial(tuple(finish)), bytes_up),
            Layout(tuple(entries)),
        )

    def each(
        self,
        local_work: LocalWork,
        sizes: Integers,
        batching: Batching,
        join: bool,
    ) -> Floats:
        """Return the FLOPs of an epoch, or the mean of the steps, of clients [n].

        Args:
            local_work: Their epochs or steps.
            sizes: Their samples [n].
            batching: Batches of an epoch.
            join: Whether a trailing batch of one sample joins the previous batch.
        """
        distinct, inverse = np.unique(sizes, return_inverse=True)
        batches = [np.diff(batch_bounds(n, batching, join)) for n in distinct.tolist()]
        epochs = [self.step.at(own.astype(float)) for own in batches]
        if isinstance(local_work, LocalSteps):
            taken = [np.resize(own, max(local_work.count, 1)).mean() for own in epochs]
        else:
            taken = [own.sum() for own in epochs]
        return np.array(taken)[inverse]


class FlopCounter:
    """Counter of the FLOPs of passes, on its own copy of the network."""

    def __init__(self, network: nn.Module, local: LocalSettings, *, layouts: bool = True) -> None:
        """Create a counter without counts.

        Args:
            network: The network, to copy.
            local: Settings of local training.
            layouts: Whether the channel has stages, which need the layout of what they change.
        """
        self._layouts = layouts
        whole = local.model_copy(update={"batch_size": "full"})
        placed = Network(copy.deepcopy(network)).placed(CPU)
        self._trainer = SequentialTrainer(placed, whole, "fp32")
        self._trainer.recorded = None  # torch does not count a script's operations
        self._known: dict[str, KindFlops] = {}

    @property
    def joins(self) -> bool:
        """True if a trailing batch of one sample joins the previous batch."""
        return self._trainer.network.has_batchnorm

    def counts(self) -> dict[str, list[Any]]:
        """Return the kinds that are counted, as JSON."""
        return {key: kind.to_json() for key, kind in sorted(self._known.items())}

    def restore(self, counts: Mapping[str, list[Any]]) -> None:
        """Take over the counts of an interrupted run, which it took on its own clients."""
        self._known |= {key: KindFlops.of_json(kind) for key, kind in counts.items()}

    def kind(self, pass_: Pass, job: ClientJob) -> KindFlops:
        """Return the FLOPs of a pass's kind; a new kind is counted on one of its clients."""
        key = _key(pass_, job)
        if key in self._known:
            return self._known[key]
        flops = self._counted(job, pass_)
        if key is not None:
            self._known[key] = flops
        return flops

    def _counted(self, job: ClientJob, pass_: Pass) -> KindFlops:
        step, finish, upload = [], [], Upload()
        for n in range(FEW, FEW + 3):
            once, upload = self._count(job, n, 1 if job.epochs else 0)
            twice = self._count(job, n, 2)[0] if job.epochs else once
            step.append(twice - once)
            finish.append(once - (twice - once))
        (a, b, c), (d, e, f) = step, finish
        bases = pass_.moved_from if self._layouts else {}
        differences = Differences.of(
            upload.sums, bases, job.broadcast, params=self._trainer.network.tensors()
        )
        of_client = pass_.bytes_up(job.client) if pass_.bytes_up else 0
        return KindFlops(
            step=Polynomial((a, b, c)),
            finish=Polynomial((d, e, f)),
            bytes_up=upload.sent_bytes() - of_client,
            differences=differences.layout,
        )

    def _count(self, job: ClientJob, n: int, epochs: int) -> tuple[int, Upload]:
        """Return the FLOPs of a job of n samples, and its upload."""
        from torch.utils.flop_counter import flop_registry  # for runs with a clock alone

        counted = 0

        def count(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
            nonlocal counted
            if (formula := flop_registry.get(function.overloadpacket)) is not None:
                counted += int(formula(*args, **kwargs, out_val=out))

        rows = torch.arange(n) % len(job.data.y)
        data = job.data._replace(x=job.data.x[rows], y=job.data.y[rows])
        # Not FlopCounterMode, which imports all of torch's compiler: 3 s.
        with watch_operations(count), without_mkldnn():
            upload, _ = self._trainer.run(replace(job, data=data, epochs=epochs))
        return counted, upload


def _key(pass_: Pass, job: ClientJob) -> str | None:
    """Return the key of a pass's kind, the same in every process; None if its rules have none."""
    rules = key_of_rules(pass_.rules, pass_.rules.transforms)
    ends = [key_of_function(function) for function in (pass_.rules.start, pass_.rules.finish)]
    if rules is None or None in ends:
        return None
    groups = (job.broadcast, job.state, job.personal)
    layouts = [sorted(Layout.of(flatten(group)).entries, key=itemgetter(0)) for group in groups]
    bases = tuple(sorted(pass_.moved_from.items()))
    trainable = pass_.trainable and sorted(pass_.trainable)
    kind = (rules, *ends, trainable, bool(job.epochs), layouts, bases)
    return hashlib.sha256(repr(kind).encode()).hexdigest()
