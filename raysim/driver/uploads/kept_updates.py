"""Aggregation of the updates that passes keep, block by block on the workers.

Legend: m clients of a pass, N coordinates of an update.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysim.api.aggregation import Aggregation, AggregationPlan, ArrivedUpdates
from raysim.api.components import called
from raysim.api.differences import NO_TENSORS, Values, flat_values, of_flat_values
from raysim.api.rules import send_model
from raysim.api.state import State
from raysim.driver.rounds.round_log import RoundLog
from raysim.driver.uploads.dispatch import Dispatch
from raysim.errors import RunError, SettingsError
from raysim.execution.base import Call, Executor, Item
from raysim.execution.messages import AggregationMessage, FailedItem
from raysim.execution.partial_sum import Columns, Kept
from raysim.execution.update_blocks import decided
from raysim.numbers.arrays import Floats
from raysim.numbers.tensors import Layout, Tensors, is_finite
from raysim.storage.column_names import OF_CLIENTS, OF_ROUNDS, check_names
from raysim.storage.updates import UpdateFiles, blocks_of

ROOT_PASS = 1 << 16
"""Added to a pass's number for the server's own training; far above the numbers of passes."""
SPANS = 32
"""Most sums of measured blocks that the server holds; [m, m] of 1000 clients takes 8 MB."""
WEIGHT = "aggregation_weight"
"""Column of `clients.parquet`: the weight of a client's update in the aggregate."""
CUT = "aggregation_cut"
"""Column of `metrics.parquet`: clients whose updates have weight 0 in the aggregate."""


NO_VALUES: Floats = np.empty(0)


@dataclass
class KeptUpdates:
    """Aggregation of the updates that a round's passes keep.

    Attributes:
        aggregation: The aggregation.
        executor: Runs the aggregation's steps on the workers.
        files: Files of the updates.
        number: Committed rounds, 0 in the first round.
        log: Receives spans of the workers, and figures of the round.
        last: State for the next round. For an aggregation that `keeps_last`, the last aggregate of
            each pass, by tensor (`pass/group/name`); for an attack, the state of its forger.
    """

    aggregation: Aggregation
    executor: Executor
    files: UpdateFiles
    number: int
    log: RoundLog
    last: State = field(default_factory=dict)

    def aggregate(
        self,
        dispatch: Dispatch,
        pass_number: int,
        kept: Mapping[int, Kept],
        arrived: ArrivedUpdates,
        *,
        taken: Collection[str] = (),
        root: Tensors = NO_TENSORS,
    ) -> tuple[dict[str, Tensor], Columns]:
        """Aggregate the kept updates of a pass.

        Args:
            dispatch: The pass.
            pass_number: The pass's number in the round.
            kept: The update of each client.
            arrived: The clients that have arrived.
            taken: Names of other columns of the clients.
            root: Tensors of the server's training on its root samples, `group/name`.

        Returns:
            The means of the kept tensors, `group/name`, and columns of the clients.

        Raises:
            RunError: clients kept different tensors, or the updates cannot be aggregated.
            SettingsError: too few updates have arrived, or the aggregation fails.
        """
        layouts = {update.layout for update in kept.values()}
        if len(layouts) > 1 or len(kept) < len(arrived.clients):
            raise RunError(f"round {self.number + 1}: clients uploaded different tensors")
        layout = layouts.pop()
        start = _start_of(dispatch, layout)
        clients = tuple(arrived.clients.tolist())
        message = AggregationMessage(
            round_number=self.number,
            pass_number=pass_number,
            clients=clients,
            samples=arrived.samples,
            digests=tuple(kept[client].digests for client in clients),
            start=start,
            last=self._last(pass_number, layout),
            root=flat_values(root, layout).astype(np.float64) - start if root else NO_VALUES,
        )
        if forger := dispatch.forger(message, self.last, self._measured):
            message = replace(message, forger=forger)
        if self.aggregation.measures:
            arrived = replace(arrived, measured=torch.from_numpy(self._measured(message)))
        plan = self._decided(arrived, taken)
        if plan.weights is not None:
            weights = plan.weights.detach().double().numpy()
            message = replace(message, weights=weights)
        blocks: list[Item] = [(block,) for block in range(blocks_of(len(start)))]
        aggregates = self._called("aggregate", message, blocks)
        aggregate = np.concatenate([aggregates[block] for block in blocks], axis=-1)
        if forger and aggregate.ndim > 1:
            self.last = {**self.last, **forger.state(aggregate[1:])}
            aggregate = aggregate[0]
        self.files.delete(self.number, pass_number)
        self._keep(pass_number, layout, aggregate)
        means = of_flat_values(start + aggregate, layout)
        for name, tensor in means.items():
            if not is_finite(tensor):
                raise RunError(
                    f"round {self.number + 1}: {called(self.aggregation)}: its update is not finite"
                    f" in {str(tensor.dtype).removeprefix('torch.')} (tensor {name})"
                )
        return means, self._columns(plan)

    def _measured(self, message: AggregationMessage) -> Floats:
        """Return the sum of the blocks' measurements, always added in the same order."""
        blocks = range(blocks_of(len(message.start)))
        size = -(-len(blocks) // SPANS)
        spans = [tuple(blocks[at : at + size]) for at in range(0, len(blocks), size)]
        measurements = self._called("measure", message, spans)
        total: Floats = sum(
            (measurements[span] for span in spans[1:]), start=measurements[spans[0]]
        )
        return total

    def _called(
        self, call: Call, message: AggregationMessage, items: list[Item]
    ) -> dict[Item, Floats]:
        """Return the workers' results by item.

        Raises:
            RunError: an item failed.
        """
        self.executor.submit(call, message, {item: float(len(item)) for item in items})
        results, blocks = self.executor.results(call), dict[Item, Floats]()
        failed: list[FailedItem] = []
        for result in results:
            if isinstance(result, FailedItem):
                failed.append(result)
                continue
            blocks |= result.blocks
            self.log.spans.setdefault(result.worker, []).extend(result.spans)
        if failed:
            raise RunError(f"the updates cannot be aggregated: {failed[0].cause}")
        return blocks

    def _decided(self, arrived: ArrivedUpdates, taken: Collection[str]) -> AggregationPlan:
        """Return the plan for a pass; add its metrics to the round's figures.

        Raises:
            SettingsError: too few updates have arrived, or a number has the name of a column.
        """
        try:
            plan = decided(self.aggregation, arrived)
        except SettingsError as error:
            raise SettingsError(f"round {self.number + 1}: {error}") from error
        whose = f"{called(self.aggregation)}: its number"
        check_names(plan.metrics, OF_ROUNDS, (), whose)
        check_names(plan.columns, OF_CLIENTS, (), whose)
        if both := sorted(plan.columns.keys() & {*taken}):
            raise SettingsError(
                f"{whose} {both[0]!r} has the name of a number that clients report, for a stage of"
                " the channel, say; leave one of the two out"
            )
        self.log.more |= plan.metrics
        if plan.weights is not None:
            self.log.more[CUT] = int((plan.weights == 0).sum())
        return plan

    @staticmethod
    def _columns(plan: AggregationPlan) -> Columns:
        columns = {name: np.asarray(column, float) for name, column in plan.columns.items()}
        if plan.weights is not None:
            columns[WEIGHT] = plan.weights.detach().double().numpy()
        return columns

    def _last(self, pass_number: int, layout: Layout) -> Floats:
        """Return the last aggregate of a pass [N], zeros for tensors without one."""
        if not self.aggregation.keeps_last:
            return NO_VALUES
        parts = []
        for name, size in _sizes(layout):
            part: Any = self.last.get(f"{pass_number}/{name}")
            parts.append(part if part is not None and len(part) == size else np.zeros(size))
        return np.concatenate(parts)

    def _keep(self, pass_number: int, layout: Layout, aggregate: Floats) -> None:
        """Keep the aggregate of a pass for the next round."""
        if not self.aggregation.keeps_last:
            return
        others = {k: v for k, v in self.last.items() if not k.startswith(f"{pass_number}/")}
        sizes = _sizes(layout)
        parts = np.split(aggregate, np.cumsum([size for _, size in sizes])[:-1])
        names = (f"{pass_number}/{name}" for name, _ in sizes)
        self.last = {**others, **dict(zip(names, parts, strict=True))}


def root_pass(dispatch: Dispatch) -> Dispatch:
    """Return a pass in which the server trains on its root samples.

    It runs as the first client of the given pass, without that client's state and personal groups,
    and with all its epochs.
    """
    first = int(dispatch.clients[0])
    full = (
        dispatch if dispatch.full_epochs is None else replace(dispatch, epochs=dispatch.full_epochs)
    )
    return replace(
        dispatch,
        clients=(first,),
        rules=replace(dispatch.rules, finish=send_model),
        epochs=full.epochs_of(first),
        lr=dispatch.lr_of(first),
        weighting="uniform",
        personal={},
        stored_groups={},
        steps=(),
    )


def _start_of(dispatch: Dispatch, layout: Layout) -> Values:
    """Return the values [N] from which a layout's tensors have moved; 0 for changes."""
    starts = {
        f"{group}/{name}": tensor
        for group, base in dispatch.stored_groups.items()
        for name, tensor in dispatch.broadcast.get(base, {}).items()
    }
    zeros = {n: torch.zeros(shape, dtype=d) for n, d, shape in layout.entries}
    return flat_values({**zeros, **{n: starts[n] for n in zeros if n in starts}}, layout)


def _sizes(layout: Layout) -> list[tuple[str, int]]:
    """Return the number of coordinates of each tensor of a layout; a complex value has two."""
    return [(n, shape.numel() * (2 if d.is_complex else 1)) for n, d, shape in layout.entries]
