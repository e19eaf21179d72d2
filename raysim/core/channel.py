"""The interface of a stage of the channel: what happens to an upload on its way to the server.

A stage has a part at the client, behind the method's `finish`, and one at the server, behind the
aggregation. It changes differences: of a group whose base the pass names (`Pass.bases`), what the
client's tensors have moved by; of a group that is a change already, the group. Integers, rows,
frozen parameters and groups without a base pass it by.

Legend: d a difference.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from raysim.core.components import Component, Registry, ask
from raysim.core.rules import Reduced, Upload, View
from raysim.core.tensors import Layout


@dataclass(frozen=True)
class Received:
    """Input of `Stage.receive`: the pass whose result has arrived.

    Attributes:
        number: Rounds committed before this one.
        cohort: The clients of the round, ascending.
        clients: K, the number of clients in all.
        generator: `generator(purpose)`: a generator on the CPU, keyed by seed, round, pass, stage
            and purpose.
    """

    number: int
    cohort: tuple[int, ...]
    clients: int
    generator: Callable[[str], torch.Generator]


class Stage(Component, ABC):
    """A stage of the channel; its fields are its settings.

    Tensors are in float64, complex ones as pairs of reals [..., 2]. A tensor that a stage returns
    as it was given, the same object, reaches the server with the bits that it would have without
    the stage.
    """

    _lasting: ClassVar[str] = "a stage keeps nothing between uploads"
    revision: ClassVar[int] = 1
    """Raised when the same settings give other bits; a run goes on in its own revision alone."""

    def send(self, view: View, upload: Upload) -> Upload:
        """Return what a client sends.

        Args:
            view: The client; `view.generator` is keyed by the stage, too.
            upload: Differences, as `sums`; its other parts are empty.

        Returns:
            An upload whose `sums` have the same groups, names and shapes. It may have `metrics`,
            which are columns of `clients.parquet`.
        """
        return upload

    def bytes_up(self, layout: Layout, client: int) -> int | None:
        """Return the bytes that the differences of a client need behind this stage.

        They are counted as sent, and a virtual clock charges them before anyone trains.

        Args:
            layout: Names (`group/name`), dtypes and shapes of the differences, as they would be
                sent without stages.
            client: The client.

        Returns:
            The bytes, or None where the stage leaves them as they were.
        """
        return None

    def receive(self, now: Received, reduced: Reduced) -> Reduced:
        """Return what the server goes on with.

        Args:
            now: The pass.
            reduced: Its result; of the groups that stages change, `means` are differences; in
                asynchronous rounds from the newest model, wherever clients started.

        Returns:
            A result whose `means` have the same groups, names and shapes.
        """
        return reduced

    def declares_bytes(self) -> bool:
        """Return whether the stage says what its differences need."""
        return type(self).bytes_up is not Stage.bytes_up


STAGES: Registry[Stage] = Registry("stage", Stage, key="channel.{}")
Stages = Mapping[str, Stage]
"""Stages by name, in the order in which clients apply them."""


def declared_bytes(stage: Stage, layout: Layout, client: int) -> int | None:
    """Return the bytes that a stage declares for a client.

    Raises:
        SettingsError: it fails, or declares something else.
    """
    size: int | None = ask(
        stage,
        "bytes_up",
        *(layout, client),
        returns=lambda size: size is None or (isinstance(size, int) and size >= 0),
        expected="a number of bytes, or None",
    )
    return size


def sent_with(sizes: Iterable[int | None], layout: Layout, total: int) -> int:
    """Return the bytes that a client sends through stages.

    Args:
        sizes: What each stage says that the differences need; the last that says it holds.
        layout: Layout of the differences, without stages.
        total: Bytes that it would send without stages.
    """
    said = [size for size in sizes if size is not None]
    return max(total - layout.nbytes, 0) + said[-1] if said else total


def sent_bytes(stages: Stages, layout: Layout, total: int, client: int) -> int:
    """Return the bytes that a client sends, as its stages declare them; see `sent_with`."""
    sizes = [declared_bytes(stage, layout, client) for stage in stages.values()]
    return sent_with(sizes, layout, total)
