"""Figures of a round's passes: bytes, losses, clients, spans."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from raysim.api.columns import OF_ENGINE, Column, by_name
from raysim.api.rules import Pass
from raysim.api.selection import Results
from raysim.execution.messages import Failure
from raysim.execution.partial_sum import Columns
from raysim.storage.column_names import OF_ROUNDS, check_names
from raysim.storage.summary import DROPPED
from raysim.storage.trace import Span

TRAINED = ("client", "samples", "train_loss", "objective")
"""Columns for the figures."""


@dataclass
class _Account:
    """Figures of all passes with one label.

    Attributes:
        bytes_up: Bytes that clients sent.
        bytes_down: Bytes that clients received.
        trained: Columns of the clients that took steps, one entry for each pass.
    """

    bytes_up: int = 0
    bytes_down: int = 0
    trained: Columns = field(default_factory=lambda: dict.fromkeys(TRAINED, np.empty(0)))

    def count(self, bytes_up: int, bytes_down: int, columns: Columns) -> None:
        """Add a pass."""
        self.bytes_up += bytes_up
        self.bytes_down += bytes_down
        took_steps = columns["steps"] > 0
        for name, values in self.trained.items():
            self.trained[name] = np.concatenate([values, columns[name][took_steps]])

    def figures(self) -> dict[str, float | None]:
        """Return the figures; losses are means over samples, None if no client has one."""
        losses = {name: self._mean(name) for name in ("train_loss", "objective")}
        return losses | {
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "clients": len(np.unique(self.trained["client"])),
        }

    def _mean(self, name: str) -> float | None:
        """Return the mean of a loss; None if no client took steps, or by loops without one."""
        losses = self.trained[name]
        if np.isnan(losses).all():
            return None
        return float(np.average(losses, weights=self.trained["samples"]))


@dataclass
class RoundLog:
    """Figures of a round's passes.

    Attributes:
        columns: For each pass, the columns of its clients in `clients.parquet`.
        dropped: Failures of dropped clients.
        spans: For each worker, its phases.
        more: Further figures of the round.
        sent_before: Bytes that clients received before the round, such as shared samples.
        pooled: Whether a pass trained on the samples of all clients in one place.
    """

    columns: list[Columns] = field(default_factory=list)
    dropped: list[Failure] = field(default_factory=list)
    spans: dict[str, list[Span]] = field(default_factory=dict)
    more: dict[str, float] = field(default_factory=dict)
    sent_before: int = 0
    pooled: bool = False
    _trained: list[Columns] = field(default_factory=list)
    _accounts: dict[str, _Account] = field(default_factory=lambda: {"": _Account()})

    def count(
        self, pass_: Pass, bytes_up: int, bytes_down: int, columns: Columns, pass_number: int
    ) -> None:
        """Count a pass under its label."""
        account = self._account(pass_.label)
        account.count(bytes_up, bytes_down, columns)
        self.pooled |= pass_.pooled
        number = np.full(len(columns["client"]), pass_number)
        self.columns.append({**columns, "pass": number})
        if pass_.epochs and not pass_.label:
            self._trained.append(self.columns[-1])

    def count_lost_traffic(self, pass_: Pass, bytes_up: int, bytes_down: int) -> None:
        """Count the bytes of clients whose results do not count, under the pass's label."""
        account = self._account(pass_.label)
        account.bytes_up += bytes_up
        account.bytes_down += bytes_down

    def _account(self, label: str) -> _Account:
        """Return the figures of a label.

        Raises:
            SettingsError: one of its columns has the name of a column of the engine.
        """
        if label not in self._accounts:
            account = _Account()
            names = [f"{label}_{name}" for name in account.figures()]
            check_names(names, OF_ROUNDS, (), f"Pass.label={label!r}: its column")
            self._accounts[label] = account
        return self._accounts[label]

    def figures(self) -> dict[str, float | None]:
        """Return columns of `metrics.parquet`: the round's, then each label's.

        The round's bytes are sums over all its passes. `clients_dropped` is a column only in rounds
        that dropped clients.
        """
        figures: dict[str, float | None] = {}
        for label, account in self._accounts.items():
            prefix = f"{label}_" if label else ""
            figures |= {f"{prefix}{name}": value for name, value in account.figures().items()}
        accounts, dropped = self._accounts.values(), {failure.client for failure in self.dropped}
        return figures | {
            "bytes_up": sum(account.bytes_up for account in accounts),
            "bytes_down": self.sent_before + sum(account.bytes_down for account in accounts),
            **({DROPPED: len(dropped)} if dropped else {}),
            **self.more,
        }

    @property
    def declared(self) -> dict[str, Column]:
        """The columns of labelled passes, by name, declared as the engine's columns are."""
        labelled = ((label, account) for label, account in self._accounts.items() if label)
        return by_name(
            OF_ENGINE[name].named(f"{label}_{name}")
            for label, account in labelled
            for name in account.figures()
        )

    def results(self) -> Results:
        """Return the last result of each client that trained in a pass without a label."""
        passes = self._trained
        clients = np.concatenate([np.empty(0), *(columns["client"] for columns in passes)])
        last = len(clients) - 1 - np.unique(clients[::-1], return_index=True)[1]
        reports = {}
        for name in dict.fromkeys(name for columns in passes for name in columns):
            missing = (np.full(len(columns["client"]), np.nan) for columns in passes)
            values = [c.get(name, other) for c, other in zip(passes, missing, strict=True)]
            reports[name] = np.concatenate(values)[last]
        losses = reports.get("train_loss", np.empty(0))
        return Results(clients[last].astype(np.int64), losses, reports)

    def losses(self, everyone: Iterable[int]) -> dict[int, float]:
        """Return the last training loss of each client that took part in the round.

        A client took part if it took steps in a pass without a label. If a pass trained on the
        samples of all clients in one place, all clients took part.

        Args:
            everyone: The clients that may take part.
        """
        trained = self._accounts[""].trained
        losses = trained["train_loss"].tolist()
        if self.pooled:
            return dict.fromkeys(everyone, losses[-1]) if losses else {}
        return dict(zip(trained["client"].astype(np.int64).tolist(), losses, strict=True))
