"""Running a method's passes: packing the order, adding the chunks up, handling failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from raysim.config import Settings
from raysim.core.errors import RunError
from raysim.core.exact import ExactSum
from raysim.core.method import ServerState
from raysim.core.packed import PackedTensors, as_tensor
from raysim.core.rules import Pass, Reduced
from raysim.core.tensors import Groups, nbytes, unflatten
from raysim.driver.listener import Listener
from raysim.execution.base import Executor, FailedItem
from raysim.execution.messages import Chunk, Failure, Order
from raysim.storage.atomic import writing
from raysim.storage.client_states import NEVER, StateVersion
from raysim.storage.trace import Span, Stopwatch
from raysim.training.stacked.stack_size import groups_of

CPU = torch.device("cpu")


@dataclass
class RoundLog:
    """What a round's passes add up to besides the method's tensors."""

    bytes_up: int = 0
    bytes_down: int = 0
    columns: list[dict[str, npt.NDArray[np.float64]]] = field(default_factory=list)
    dropped: list[Failure] = field(default_factory=list)
    spans: dict[str, list[Span]] = field(default_factory=dict)

    def figures(self) -> dict[str, float]:
        """Return the round's columns of `metrics.parquet`; losses are means over examples."""
        merged = {
            name: np.concatenate([columns[name] for columns in self.columns])
            for name in ("client", "samples", "steps", "train_loss", "objective")
        }
        trained = merged["steps"] > 0
        weights = merged["samples"][trained]
        losses = {
            name: float(np.average(merged[name][trained], weights=weights)) if len(weights) else 0.0
            for name in ("train_loss", "objective")
        }
        return losses | {
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "clients": len(np.unique(merged["client"][trained])),
        }


class _Sum:
    """The chunks of one pass, added up on the server; each client is in it once."""

    def __init__(self) -> None:
        self.sum: ExactSum | None = None
        self.weight = 0
        self.chunks: list[Chunk] = []

    def accept(self, chunk: Chunk) -> None:
        if not chunk.clients:
            return
        self.sum = self.sum or ExactSum(chunk.layout)
        self.sum.merge(
            {dtype: as_tensor(array, torch.int64) for dtype, array in chunk.totals.items()}
        )
        self.weight += chunk.weight
        chunk.totals.clear()
        self.chunks.append(chunk)

    def reduced(self, total: int) -> tuple[Reduced, dict[str, npt.NDArray[np.float64]]]:
        clients = np.concatenate([chunk.clients for chunk in self.chunks])
        order = clients.argsort()
        columns = {
            name: np.concatenate([chunk.columns[name] for chunk in self.chunks])[order]
            for name in self.chunks[0].columns
        }
        rows = {c: wire.open(CPU) for chunk in self.chunks for c, wire in chunk.rows.items()}
        scalars = {name: columns[name] for name in sorted(self.chunks[0].scalars)}
        means = self.sum.mean(self.weight, total) if self.sum else {}
        ids = tuple(clients[order].tolist())
        return Reduced(ids, unflatten(means), rows, scalars), columns


class PassRunner:
    """Runs the passes of one round; `Round.run` is its `run`."""

    def __init__(
        self,
        settings: Settings,
        sizes: npt.NDArray[np.int64],
        executor: Executor,
        *,
        watch: Stopwatch,
        listener: Listener,
        errors: Path,
        together: int,
        kept: npt.NDArray[np.int64],
    ) -> None:
        """Take what the passes of all rounds share.

        Args:
            settings: The run's.
            sizes: Samples of each client [clients].
            executor: Who trains.
            watch: The driver's.
            listener: Told of progress.
            errors: File for tracebacks.
            together: Clients that are trained together.
            kept: The latest version of each client's state [clients, 2]; see `ClientStates`.
        """
        self._kept = kept
        self._settings = settings
        self._errors = errors
        self._sizes = sizes
        self._executor = executor
        self._listener = listener
        self._watch = watch
        self._together = together
        self._refused = False

    def begin(self, number: int, state: ServerState, keep_from: int) -> RoundLog:
        """Start a round; return the log that its passes fill."""
        self._number, self._index, self._keep_from = number, 0, keep_from
        self._fresh: Groups = self._settings.method.client_init(state)
        self._lasting = self._settings.method.client_bytes(state) > 0
        self._replaced: list[tuple[int, StateVersion]] = []
        self.log = RoundLog()
        return self.log

    def run(self, work: Pass) -> Reduced:
        """Run one pass over clients.

        Raises:
            RunError: a client failed twice and `on_client_error` is "stop", or none is left.
        """
        clients = [int(client) for client in work.clients]
        weighting = work.weighting or self._settings.weighting
        uniform = weighting == "uniform"
        total = len(clients) if uniform else int(self._sizes[clients].sum())
        with self._watch("broadcast"):
            order = self._order(work, uniform, total)
        result = _Sum()
        groups = groups_of(clients, self._sizes, self._together if work.epochs else 1)
        failed = self._train(order, groups, result, "again")
        if failed:
            self._part(failed)
            alone = [(failure.client,) for failure in failed if not failure.final]
            failed = [failure for failure in failed if failure.final]
            failed += self._train(order, alone, result, "stop") if alone else []
        self.log.dropped += failed
        if not result.chunks:
            raise RunError(
                f"round {self._number + 1}: no client is left; the last one, client"
                f" {failed[-1].client}, failed: {failed[-1].cause}"
            )
        with self._watch("reduction"):
            reduced, columns = result.reduced(total)
        self._count(work, clients, reduced, columns, result)
        keepers = [client for chunk in result.chunks for client in chunk.keepers]
        self._replaced += self._of_this_round(keepers)
        self._kept[keepers] = (self._number, self._index)
        self._index += 1
        return reduced

    def end(self) -> list[tuple[int, StateVersion]]:
        """End the round; return the versions of clients' state that were for it alone."""
        if not self._lasting:
            clients = np.flatnonzero(self._kept[:, 0] == self._number).tolist()
            self._replaced += self._of_this_round(clients)
            self._kept[clients] = NEVER
        return self._replaced

    def _of_this_round(self, clients: Sequence[int]) -> list[tuple[int, StateVersion]]:
        return [(c, v) for c, v in self._versions(clients).items() if v[0] == self._number]

    def _part(self, failed: Sequence[Failure]) -> None:
        """Train clients one at a time from now on if they could not be trained together."""
        reason = next((f.cause for f in failed if f.together > 1), None)
        if reason:
            self._listener.note(
                f"clients are trained one at a time: together they failed: {reason}"
            )
            self._together = 1

    def _train(
        self,
        order: Order,
        groups: Sequence[tuple[int, ...]],
        result: _Sum,
        then: Literal["again", "stop"],
    ) -> list[Failure]:
        failed: list[Failure] = []
        epochs, clients = max(order.epochs, 1), sum(map(len, groups))
        costs = {group: float(self._sizes[list(group)].sum() * epochs) for group in groups}
        for part in self._executor.map(
            "train", order, costs, lambda done: self._listener.progress(done, clients)
        ):
            failures = _lost(part) if isinstance(part, FailedItem) else self._accept(part, result)
            self._log(failures)
            failed += failures
            self._stop_at([f for f in failed if f.final or then == "stop"])
        return sorted(failed, key=lambda failure: failure.client)

    def _accept(self, chunk: Chunk, result: _Sum) -> list[Failure]:
        """Add a chunk up; return the failures that it tells of."""
        with self._watch("reduction"):
            result.accept(chunk)
        self.log.spans.setdefault(chunk.worker, []).extend(chunk.spans)
        if chunk.refusal and not self._refused:
            self._refused = True
            self._listener.note(f"steps are not recorded as CUDA graphs: {chunk.refusal}")
        return chunk.failures

    def _stop_at(self, failed: Sequence[Failure]) -> None:
        """Stop the run at clients that are not tried again, unless they are to be dropped."""
        if failed and self._settings.on_client_error == "stop":
            how = "failed" if failed[0].final else "failed twice"
            raise RunError(
                f"client {failed[0].client}: {how} in round {self._number + 1}:"
                f" {failed[0].cause} (traceback in {self._errors};"
                " on_client_error=drop goes on without it)"
            )

    def _log(self, failures: Sequence[Failure]) -> None:
        if not failures:
            return
        with writing(self._errors), self._errors.open("a", encoding="utf-8") as file:
            for failure in failures:
                file.write(f"round {self._number + 1}, client {failure.client}\n{failure.trace}\n")

    def _order(self, work: Pass, uniform: bool, total: int) -> Order:
        return Order(
            round_number=self._number,
            index=self._index,
            rules=work.rules,
            epochs=work.epochs,
            lr=work.lr,
            trainable=work.trainable,
            uniform=uniform,
            total=total,
            broadcast=PackedTensors.of(work.broadcast),
            fresh=PackedTensors.of(self._fresh),
            kept=self._versions(work.clients),
            personal={client: PackedTensors.of(groups) for client, groups in work.personal.items()},
            keep_from=self._keep_from,
        )

    def _versions(self, clients: Sequence[int]) -> dict[int, StateVersion]:
        latest = map(tuple, self._kept[list(clients)].tolist())
        return {c: version for c, version in zip(clients, latest, strict=True) if version != NEVER}

    def _count(
        self,
        work: Pass,
        clients: list[int],
        reduced: Reduced,
        columns: dict[str, npt.NDArray[np.float64]],
        result: _Sum,
    ) -> None:
        common = nbytes(work.broadcast)
        down = work.bytes_down or (lambda client: common)
        own = sum(nbytes(groups) for groups in work.personal.values())
        self.log.bytes_down += sum(down(client) for client in clients) + own
        self.log.bytes_up += sum(chunk.bytes_up for chunk in result.chunks)
        self.log.columns.append({**columns, "pass": np.full(len(reduced.clients), self._index)})


def _lost(part: FailedItem) -> list[Failure]:
    """Return the failures of clients whose worker died every time they were trained."""
    together = len(part.item)
    return [
        Failure(client, part.cause, part.cause, together, final=together == 1)
        for client in part.item
    ]
