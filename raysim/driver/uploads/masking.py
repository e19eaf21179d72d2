"""Masks of a run: what clients send besides the masked words, and what needs single uploads.

What the server may not read is withheld (`raysim.driver.rounds.hiding`); what clients send is seen
when it arrives, in the rehearsal at first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from raysim.api.channel import Stage
from raysim.api.components import called
from raysim.api.differences import split_stored
from raysim.api.rules import Reduced, Trained, Upload, View
from raysim.config import Settings
from raysim.driver.rounds.hiding import masking_of
from raysim.driver.start.parts import RunParts
from raysim.driver.uploads.dispatch import Dispatch
from raysim.errors import SettingsError
from raysim.execution.partial_sum import PartialSum
from raysim.numbers.encoding import Encoding
from raysim.numbers.masking import Masks
from raysim.numbers.tensors import Layout, Tensors, flatten, without


def traffic(
    dispatch: Dispatch, total: PartialSum, clients: Sequence[int], masks: Masks | None
) -> tuple[int, int]:
    """Return the bytes that the clients of a pass have sent and received, those of masks included.

    Args:
        dispatch: The pass.
        total: All that has arrived.
        clients: Its clients.
        masks: Its masks, if it has any.
    """
    sent, received = total.bytes_up, int(dispatch.received_bytes(clients, dispatch.frozen).sum())
    if masks and sent:
        agreed = len(masks.clients)
        sent += len(total.clients) * masks.secure.bytes_up(agreed)
        received += len(clients) * masks.secure.bytes_down(agreed)
    return sent, received


def with_masks(settings: Settings, note: Callable[[str], None], dispatch: Dispatch) -> Dispatch:
    """Return a pass whose clients agree on masks; as it is in runs without any.

    The virtual clock, which comes later, knows who is lost.

    Args:
        settings: The run's settings.
        note: Shows the user, once, what is sent in the clear.
        dispatch: The pass.
    """
    stage = masking_of(settings)
    if stage is None:
        return dispatch
    bits = stage.secure_sum.bits if stage.secure_sum else 0
    bases = tuple(sorted(dispatch.moved_from.items()))
    return replace(dispatch, mask_parties=tuple(map(int, dispatch.clients))).with_step(
        "masks",
        after=partial(_in_words, bits, bases),
        server=partial(_received, settings, stage, note),
    )


def _received(
    settings: Settings, stage: Stage, note: Callable[[str], None], reduced: Reduced
) -> Reduced:
    """Return the result as it is; tell what is sent in the clear."""
    if clear := sorted({name for of in reduced.means.values() for name in _whole(of)}):
        more = f" and {len(clear) - 1} more" if clear[1:] else ""
        note(
            f"{called(stage)}: clients send {clear[0]!r}{more} in the clear, whole numbers of which"
            " the server takes the largest"
        )
    return reduced


def check_masks(parts: RunParts) -> None:
    """Check, before a run with masks starts, that the server can do with sums of clients.

    Args:
        parts: The run's parts.

    Raises:
        SettingsError: it cannot.
    """
    settings = parts.settings
    if not (stage := masking_of(settings)):
        return
    if settings.cohort_size < 2:
        more = "fraction" if len(settings.participants) > 1 else "clients"
        raise SettingsError(
            f"{called(stage)}: a round has one client, whose sum is its own; raise {more}"
        )


def _whole(tensors: Tensors) -> list[str]:
    """Return the names of tensors of whole numbers."""
    return [n for n, t in tensors.items() if not (t.is_floating_point() or t.is_complex())]


def _in_words(
    bits: int, bases: Sequence[tuple[str, str]], view: View, trained: Trained, upload: Upload
) -> Upload:
    """Return the method's upload, with the bytes of words for values that stages pass by."""
    left, _ = split_stored(upload, dict(bases), view.broadcast, view.frozen)
    passing = {
        name: tensor
        for group, of in left.sums.items()
        for name, tensor in flatten({group: without(of, {*view.frozen, *_whole(of)})}).items()
    }
    sent = Encoding.of(Layout.of(passing))
    more = replace(sent, bits=bits).nbytes - sent.nbytes
    return replace(upload, bytes_up=upload.sent_bytes(view.frozen) + more) if more else upload
