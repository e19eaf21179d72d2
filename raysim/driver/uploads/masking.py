"""Masks of a run: the seal of workers' sums, the bytes of masked words, and checks.

`raysim.driver.rounds.hiding` withholds the values that the server may not read. The rehearsal is
the first to see the uploads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from raysim.api.channel import Stage, Stages
from raysim.api.components import called
from raysim.api.differences import split_stored
from raysim.api.rules import Reduced, Trained, Upload, View
from raysim.driver.rounds.passes import RoundRunner
from raysim.driver.start.parts import RunParts
from raysim.driver.uploads.dispatch import Dispatch, UploadStep
from raysim.errors import RunError, SettingsError
from raysim.execution.partial_sum import PartialSum
from raysim.numbers.encoding import Encoding
from raysim.numbers.masking import Masks, SecureSum, words_of
from raysim.numbers.tensors import Layout, Tensors, flatten, without
from raysim.numbers.tensors.exact import Addend
from raysim.numbers.tensors.magnitudes import LIMIT


def masking_of(stages: Stages) -> Stage | None:
    """Return the stage with a secure aggregation; None without one."""
    return next((stage for stage in stages.values() if stage.secure_sum), None)


@dataclass(frozen=True)
class Masked:
    """Seal of a pass, which masks the sums of its clients."""

    masks: Masks

    def check(self, addend: Addend) -> None:
        """Check that masks can add a client's values.

        Raises:
            RunError: a value is too large.
        """
        if addend.coarse:
            raise RunError(f"its update has values beyond {LIMIT:g}, the largest that masks add")

    def on(self, total: PartialSum) -> None:
        """Add the masks of the sum's clients to its words and its weight."""
        self._add(total, 1)

    def off(self, total: PartialSum) -> None:
        """Take the masks of the sum's clients off its words and its weight."""
        self._add(total, -1)

    def _add(self, total: PartialSum, sign: int) -> None:
        weight = np.array([total.weight % 2**64], dtype=np.uint64)
        words = words_of(total.sum) if total.sum else []
        self.masks.add_to([*words, weight.view(np.int64)], total.clients, sign=sign)
        total.weight = int(weight[0])

    def lost(self, clients: Collection[int]) -> str:
        """Return why the sum of the arrived clients cannot be unmasked; "" if it can."""
        if not self.masks.is_lost(clients):
            return ""
        return (
            f"{len(clients)} of {len(self.masks.clients)} clients are left, too few to unmask their"
            " sum (channel.masks.threshold)"
        )


def _sealed(
    secure: SecureSum, seed: int, number: int, pass_number: int, clients: tuple[int, ...]
) -> Masked:
    return Masked(Masks(secure, (seed, number, pass_number), clients))


def with_masks(runner: RoundRunner, dispatch: Dispatch) -> Dispatch:
    """Return a pass whose uploads are masked; the same pass in a run without masks.

    Lost clients are not known yet, because the virtual clock comes later.

    Args:
        runner: Runs the pass.
        dispatch: The pass.
    """
    settings, note = runner.context.settings, runner.context.note_once
    stage = masking_of(settings.stages)
    if not (stage and stage.secure_sum):
        return dispatch
    bases = tuple(sorted(dispatch.moved_from.items()))
    return dispatch.with_step(
        UploadStep(
            after=partial(_in_words, stage.secure_sum.bits, bases),
            server=partial(_received, stage, note),
            seal=partial(_sealed, stage.secure_sum, settings.seed, runner.number),
        )
    )


def _received(stage: Stage, note: Callable[[str], None], reduced: Reduced) -> Reduced:
    """Return the result; note tensors that clients send in the clear."""
    if clear := sorted({name for tensors in reduced.means.values() for name in _whole(tensors)}):
        more = f" and {len(clear) - 1} more" if clear[1:] else ""
        note(
            f"{called(stage)}: clients send {clear[0]!r}{more} in the clear: the server takes the"
            " maximum of whole numbers"
        )
    return reduced


def check_masks(parts: RunParts, *_: Any) -> None:
    """Check, before a run with masks starts, that a round has several clients.

    Args:
        parts: The run's parts.

    Raises:
        SettingsError: a round has a single client.
    """
    settings = parts.settings
    if not (stage := masking_of(settings.stages)):
        return
    if settings.cohort_size < 2:
        more = "fraction" if len(settings.participants) > 1 else "clients"
        raise SettingsError(
            f"{called(stage)}: a round has one client, whose sum is its own; raise {more}"
        )


def _whole(tensors: Tensors) -> list[str]:
    """Return the names of integer and boolean tensors."""
    return [n for n, t in tensors.items() if not (t.is_floating_point() or t.is_complex())]


def _in_words(
    bits: int, bases: Sequence[tuple[str, str]], view: View, trained: Trained, upload: Upload
) -> Upload:
    """Return an upload that counts masked words for the values that stages leave alone."""
    left, _ = split_stored(upload, dict(bases), view.broadcast)
    passing = {
        name: tensor
        for group, tensors in left.sums.items()
        for name, tensor in flatten({group: without(tensors, _whole(tensors))}).items()
    }
    sent = Encoding.of(Layout.of(passing))
    more = replace(sent, bits=bits).nbytes - sent.nbytes
    return replace(upload, bytes_up=upload.sent_bytes() + more) if more else upload
