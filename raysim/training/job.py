"""A client's job: its rules, samples and random draws, its batches, and its losses.

Legend: n samples of the client, B batch, S steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysim.api.rules import (
    NO_VALUES,
    Batch,
    Batching,
    Gradient,
    LocalSteps,
    LocalValues,
    LocalWork,
    Pass,
    Rules,
    View,
    only_in_finish,
)
from raysim.numbers.arrays import Integers
from raysim.numbers.seeds import owned_generator, stream, torch_seed
from raysim.numbers.tensors import CPU, Groups

Bounds = list[tuple[int, int]]


@dataclass(frozen=True)
class ClientJob:
    """One client's work in a pass: its rules, samples, groups and random draws."""

    rules: Rules
    epochs: LocalWork
    lr: float
    trainable: frozenset[str] | None
    data: Batch
    broadcast: Groups
    state: Groups
    personal: Groups
    augment: Callable[[Tensor, torch.Generator], Tensor]
    batches: Callable[[], np.random.Generator]
    torch_seed: int
    generator: Callable[[str], torch.Generator]
    client: int = -1
    root: bool = False
    round: int = 0
    values: LocalValues = NO_VALUES
    stages: Groups = field(default_factory=dict)
    optimizer: Groups = field(default_factory=dict)
    pass_generator: Callable[[str], torch.Generator] = only_in_finish

    @classmethod
    def of(
        cls,
        pass_: Pass,
        client: int,
        data: Batch,
        *,
        keys: tuple[int, int, int, int],
        device: torch.device = CPU,
        **opened: Any,
    ) -> ClientJob:
        """Return the job of a client in a pass.

        Args:
            pass_: The pass; its groups are given opened.
            client: The client.
            data: Its samples.
            keys: Keys of its random draws: seed, round, pass and client.
            device: Device of its generators.
            opened: The attributes `broadcast`, `state`, `stages`, `optimizer`, `personal`,
                `augment`, `root` and `values`.
        """
        seed, *places = keys
        return cls(
            rules=pass_.rules,
            epochs=pass_.epochs_of(client),
            lr=pass_.lr_of(client),
            trainable=pass_.trainable,
            data=data,
            batches=partial(stream, seed, "batches", *places),
            torch_seed=torch_seed(seed, "training", *places),
            generator=partial(owned_generator, seed, "client", places, device=device),
            pass_generator=partial(owned_generator, seed, "clients", places[:-1], device=device),
            client=client,
            round=places[0],
            **opened,
        )

    def with_samples_read(self) -> ClientJob:
        """Return this job with the groups that its rules make of its samples."""
        if self.rules.from_samples is None:
            return self
        with torch.no_grad():
            made = self.rules.from_samples({**self.state, **self.broadcast}, self.data)
        return replace(self, state={**self.state, **made})

    def finishing(self, view: View, gradient: Gradient) -> View:
        """Return the view of a step as `finish` sees it.

        Args:
            view: The view.
            gradient: Returns gradients in evaluation mode.
        """
        return replace(
            view,
            values=self.values,
            generator=self.generator,
            pass_generator=self.pass_generator,
            client=self.client,
            stages=self.stages,
            gradient=gradient,
        )


class LocalLosses:
    """Figures of one client's training, averaged over examples and local steps.

    Attributes:
        steps: The steps taken.
    """

    def __init__(self, read: Callable[[], Tensor], sizes: Sequence[int]) -> None:
        """Average losses and objectives of S steps on batches of these sizes.

        Args:
            read: Returns both, [2, S], or [S] if they are the same; called when they are asked for.
            sizes: The samples of the batches.
        """
        self._read, self._sizes, self.steps = read, sizes, len(sizes)

    @classmethod
    def stated(cls, loss: float, steps: int) -> LocalLosses:
        """Return the figures of a client whose mean loss is known."""
        losses = cls(lambda: torch.tensor([loss], dtype=torch.float64), [1])
        losses.steps = steps
        return losses

    @cached_property
    def _means(self) -> tuple[float, float]:
        if not self._sizes:
            return float("nan"), float("nan")
        read = self._read()
        both = (read if read.dim() == 2 else torch.stack([read, read])).double().numpy()
        loss, objective = (both @ np.asarray(self._sizes, dtype=np.float64)) / sum(self._sizes)
        return float(loss), float(objective)

    @property
    def train_loss(self) -> float:
        """The mean loss at T=1."""
        return self._means[0]

    @property
    def objective(self) -> float:
        """The mean of what was minimised."""
        return self._means[1]


def losses_of_stack(read: Callable[[], Tensor], sizes: Integers) -> list[LocalLosses]:
    """Return the losses of the clients of a stack.

    Args:
        read: Returns losses and objectives [S, 2, K].
        sizes: Samples in the batches [K, S]; 0 where a client took no step.
    """
    read_once = cache(read)

    def of_client(k: int) -> LocalLosses:
        taken = np.flatnonzero(sizes[k])
        return LocalLosses(lambda: read_once()[taken, :, k].T, sizes[k][taken].tolist())

    return [of_client(k) for k in range(len(sizes))]


def batch_bounds(n: int, batching: Batching, join_single: bool) -> Bounds:
    """Return (start, stop) of the batches of n samples.

    Args:
        n: Number of samples.
        batching: Batch size; the last batch may be smaller, or left out.
        join_single: Whether a trailing batch of one sample joins the one before it, which
            BatchNorm needs.
    """
    stop = int(batching.used(np.array(n)))
    starts = list(range(0, stop, n if batching.size == "full" else batching.size))
    if join_single and len(starts) > 1 and stop - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], stop], strict=True))


def steps_of(local_work: LocalWork, batches: int) -> int:
    """Return the local steps of a client, given the number of batches of an epoch."""
    return local_work.count if isinstance(local_work, LocalSteps) else local_work * batches


def iterate_epochs(job: ClientJob, bounds: Bounds) -> Iterator[tuple[Tensor, Integers]]:
    """Yield for each local epoch the inputs [n, ...] and the order of the samples [n]."""
    x, n = job.data.x, len(job.data.y)
    batches = job.batches()
    generator = torch.Generator(x.device).manual_seed(job.torch_seed)
    for _ in range(-(-steps_of(job.epochs, len(bounds)) // len(bounds))):
        order = np.arange(n) if bounds == [(0, n)] else batches.permutation(n)
        yield job.augment(x, generator), order
