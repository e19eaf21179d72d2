"""Partial sums: a worker adds up uploads over clients, and the driver sums over workers.

A partial sum is the same whatever the order of adding and merging: sums are exact integers, and
records are sorted by client where they are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from raysim.api.rules import Reduced, Upload
from raysim.errors import RunError, SettingsError
from raysim.numbers.arrays import Floats
from raysim.numbers.tensors import CPU, Layout, Tensors, flatten, not_finite, unflatten
from raysim.numbers.tensors.exact import Addend, ExactSum, StackAddend
from raysim.numbers.tensors.packed import PackedTensors, on_host_later
from raysim.storage.column_names import OF_CLIENTS, check_names

Columns = dict[str, Floats]
EMPTY = np.empty(0, dtype=np.int64)


class Kept(NamedTuple):
    """A client's update, which is kept in a file.

    Attributes:
        layout: Layout of its tensors.
        digests: Digests of its blocks.
    """

    layout: Layout
    digests: tuple[bytes, ...]


class Checked(NamedTuple):
    """Upload that can be added.

    Attributes:
        upload: The upload, with the tensors that are not summed on the CPU.
        addend: Its sums.
    """

    upload: Upload
    addend: Addend


class Seal(Protocol):
    """Seal of workers' sums; the server can open only the sum of all."""

    def check(self, addend: Addend) -> None:
        """Check that an upload can be sealed."""

    def on(self, total: PartialSum) -> None:
        """Seal the sum of a worker."""

    def off(self, total: PartialSum) -> None:
        """Open the sum of all that has arrived."""

    def lost(self, clients: Collection[int]) -> str:
        """Return why the sum of these clients cannot be opened; empty if it can."""


@dataclass
class PartialSum:
    """Exact sum of some clients' uploads, with their records.

    Attributes:
        clients: The clients, in the order of their addition.
        weight: Their total weight.
        sum: The sum of `Upload.sums`; None before the first client.
        records: For each client, the numbers of its row in `clients.parquet`.
        scalars: Names of the records that the method's server reads.
        rows: For each client, its `Upload.rows`.
        bytes_up: Bytes that the clients sent.
        wrote_state: Digest of the client state of each client that wrote one.
        wrote_round_state: Digest of the round state of each client that wrote one.
        kept: For each client, its update, if it is kept in a file.
        seal: Seals the sum before it leaves the worker.
    """

    clients: list[int] = field(default_factory=list)
    weight: int = 0
    sum: ExactSum | None = None
    records: list[Mapping[str, float]] = field(default_factory=list)
    scalars: frozenset[str] = frozenset()
    rows: dict[int, PackedTensors] = field(default_factory=dict)
    bytes_up: int = 0
    wrote_state: dict[int, int] = field(default_factory=dict)
    wrote_round_state: dict[int, int] = field(default_factory=dict)
    kept: dict[int, Kept] = field(default_factory=dict)
    seal: Seal | None = None

    def check(self, upload: Upload) -> Callable[[], Checked]:
        """Begin to check that an upload can be added; a GPU is not waited for.

        Returns:
            A function that ends the check, and raises the same errors.

        Raises:
            RunError: a value is not finite or out of range, or too large to be sealed, or the
                tensors differ from those of earlier uploads; the message names the tensor.
            SettingsError: a number has the name of a column of the engine.
        """
        # By name: a resumed run has a state's tensors in another order than a network's.
        sums = dict(sorted(flatten(upload.sums).items()))
        layout = Layout.of(sums).with_dtypes(upload.dtypes)
        read_addend, read_upload = Addend.later(layout, sums), _on_host_later(upload)

        def end() -> Checked:
            if self.sum and self.sum.layout != layout:
                raise RunError(
                    "its upload's tensors differ from earlier uploads' tensors"
                    f" ({_difference(layout, self.sum.layout)})"
                )
            addend, on_host = read_addend(), read_upload()
            if self.seal:
                self.seal.check(addend)
            _check_finite(on_host)
            if upload.samples:
                raise SettingsError(
                    f"its Upload.samples is {upload.samples}, which the engine sets; to weigh"
                    " clients otherwise, give Pass.weighting a number for each, or `weighting` a"
                    " table"
                )
            check_names([*upload.scalars, *upload.metrics], OF_CLIENTS, (), "its number")
            return Checked(on_host, addend)

        return end

    def check_stack(self, sums: Tensors) -> Callable[[], StackAddend | None]:
        """Begin to check the models [K, ...] of clients at once, in place of `check`.

        Returns:
            A function that returns their sums, ready for `add_stack`; None if they must be checked
            one by one.
        """
        read = StackAddend.later(dict(sorted(flatten({"model": sums}).items())))

        def end() -> StackAddend | None:
            addend = read()
            fits = addend and (self.sum is None or addend.layout == self.sum.layout)
            return addend if fits else None

        return end

    def add_stack(
        self,
        records: Sequence[Mapping[str, float]],
        addend: StackAddend,
        shares: Sequence[tuple[int, float]],
    ) -> None:
        """Add the uploads of clients that `check_stack` has checked; this does not fail.

        Args:
            records: See `add`, of each client.
            addend: What `check_stack` returned.
            shares: Of each client, its weight and its fraction of the weight of all.
        """
        self.sum = self.sum or ExactSum(addend.layout)
        self.sum.add_stack(addend, [fraction for _, fraction in shares])
        self.clients += [int(record["client"]) for record in records]
        self.weight += sum(weight for weight, _ in shares)
        self.records += records
        self.bytes_up += len(records) * addend.layout.nbytes

    def add(
        self,
        record: Mapping[str, float],
        checked: Checked,
        weight: int,
        total_weight: int,
        *,
        discount: float = 1.0,
        digests: tuple[int, int] = (0, 0),
        kept: Kept | None = None,
    ) -> None:
        """Add one client's upload, which `check` has checked; this does not fail.

        Args:
            record: Numbers of its row in `clients.parquet`; `client` is its id.
            checked: The upload.
            weight: The client's weight.
            total_weight: Weight of all clients of the pass.
            discount: Factor of its sums, at most 1, which does not count in the weight.
            digests: Of the files of its client state and its round state; 0 where it wrote none.
            kept: The rest of its update, where it is kept in a file.
        """
        client, (upload, addend) = int(record["client"]), checked
        if kept:
            self.kept[client] = kept
        self.sum = self.sum or ExactSum(addend.layout)
        self.sum.add(addend, weight / total_weight * discount)
        self.clients.append(client)
        self.weight += weight
        metrics = {name: float(value) for name, value in upload.metrics.items()}
        self.records.append({**record, **upload.scalars, **metrics})
        self.scalars |= upload.scalars.keys()
        if upload.rows:
            self.rows[client] = PackedTensors.of(upload.rows)
        if upload.state:
            self.wrote_state[client] = digests[0]
        if upload.round_state:
            self.wrote_round_state[client] = digests[1]
        self.bytes_up += upload.sent_bytes()

    def merge(self, other: PartialSum) -> None:
        """Add another partial sum, of other clients of the same pass.

        Raises:
            RunError: its clients uploaded other tensors.
        """
        if not other.clients:
            return
        if other.sum is not None:
            self.sum = self.sum or ExactSum(other.sum.layout)
            if self.sum.layout != other.sum.layout:
                raise RunError(
                    f"clients {self.clients[0]} and {other.clients[0]} uploaded different tensors"
                    f" ({_difference(self.sum.layout, other.sum.layout)})"
                )
            self.sum.merge(other.sum)
        self.clients += other.clients
        self.weight += other.weight
        self.records += other.records
        self.scalars |= other.scalars
        self.rows |= other.rows
        self.bytes_up += other.bytes_up
        self.wrote_state |= other.wrote_state
        self.wrote_round_state |= other.wrote_round_state
        self.kept |= other.kept

    def leave(self) -> None:
        """Seal it, once, if it is to be."""
        if self.seal and self.sum:
            self.seal.on(self)
        self.seal = None

    def columns(self) -> Columns:
        """Return the records as columns [n], by client."""
        ordered = sorted(self.records, key=lambda record: record["client"])
        names = dict.fromkeys(name for record in ordered for name in record)
        return {n: np.array([record.get(n, np.nan) for record in ordered]) for n in names}

    def reduced(self, total_weight: int, columns: Columns) -> Reduced:
        """Return the result of a pass; `total_weight` is the weight of all its clients."""
        means = self.sum.mean(self.weight, total_weight) if self.sum else {}
        return Reduced(
            tuple(sorted(self.clients)),
            unflatten(means),
            {client: packed.open(CPU) for client, packed in sorted(self.rows.items())},
            {name: columns[name] for name in sorted(self.scalars)},
            samples=columns["samples"].astype(np.int64) if "samples" in columns else EMPTY,
        )


Sums = dict[int, PartialSum]
"""Partial sums by the round that aggregates them: one round, unless rounds are asynchronous."""


def merge_sums(total: Sums, others: Sums) -> None:
    """Add the partial sums of other clients, round by round.

    Raises:
        RunError: clients of a round uploaded different tensors.
    """
    for number, other in others.items():
        total.setdefault(number, PartialSum()).merge(other)


def _difference(layout: Layout, other: Layout) -> str:
    """Return the first tensor, by name, that differs between two layouts."""
    return min(name for name, _, _ in {*layout.entries} ^ {*other.entries})


def _on_host_later(upload: Upload) -> Callable[[], Upload]:
    """Return a function that returns an upload with the tensors that are not summed on the CPU."""
    groups = {
        f"{kind}/{name}": tensors
        for kind in ("rows", "state", "round_state")
        for name, tensors in getattr(upload, kind).items()
    }
    numbers = {name: value for name, value in upload.metrics.items() if isinstance(value, Tensor)}
    read = on_host_later(flatten(groups))
    read_numbers = on_host_later(numbers)

    def end() -> Upload:
        tensors = read()
        kinds: dict[str, dict[str, Tensors]] = {"rows": {}, "state": {}, "round_state": {}}
        for key, group in groups.items():
            kind, _, name = key.partition("/")
            kinds[kind][name] = {tensor: tensors[f"{key}/{tensor}"] for tensor in group}
        metrics = {**upload.metrics, **{n: float(v) for n, v in read_numbers().items()}}
        return replace(
            upload,
            rows=kinds["rows"],
            state=kinds["state"],
            round_state=kinds["round_state"],
            metrics=metrics,
        )

    return end


def _check_finite(upload: Upload) -> None:
    """Check the parts of an upload that are not summed.

    Raises:
        RunError: a value is not finite; it names the tensor or the number.
    """
    unsummed = (upload.rows, upload.state, upload.round_state)
    bad = [name for groups in unsummed for name in not_finite(flatten(groups))]
    bad += [name for name, value in upload.scalars.items() if not math.isfinite(value)]
    if bad:
        raise RunError(f"its update is not finite ({bad[0]}): try a smaller local.lr")
