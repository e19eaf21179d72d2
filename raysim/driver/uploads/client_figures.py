"""Client parts of analyses: added to a pass, their figures taken out of its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from raysim.analysis.base import ClientPart
from raysim.api.rules import Reduced, Trained, Upload, View
from raysim.driver.uploads.dispatch import Dispatch, UploadStep
from raysim.errors import MachineError
from raysim.execution.process import is_device_error
from raysim.numbers.tensors import Groups, Tensors, is_finite, nbytes

GROUP = "analysis:"
"""Prefix of the names of row groups that hold figures."""
Figures = dict[str, dict[int, Tensors]]
"""For each part and client, its figures."""
Extras = tuple[Groups, Mapping[int, Groups]]
"""Groups for all clients of a pass, and groups for single clients."""
Start = Callable[[Groups, Groups, Groups], Tensors]


def rows_beside(reduced: Reduced) -> list[str]:
    """Return the names of the rows in a result, without figures of analyses."""
    rows = {name for groups in reduced.rows.values() for name in groups}
    return sorted(name for name in rows if not name.startswith(GROUP))


def with_parts(
    dispatch: Dispatch,
    parts: Mapping[str, ClientPart],
    extras: Extras,
    keep: Callable[[Figures], None],
) -> Dispatch:
    """Return a pass with client parts; it counts the same bytes as without them.

    Args:
        dispatch: The pass.
        parts: The client parts, by analysis.
        extras: Groups that the parts need.
        keep: Called with the figures of the clients that arrived.
    """
    groups, personal = extras
    added = (*groups, *(["own_test"] if personal else []))
    sent = {**dispatch.personal}
    sent |= {
        client: {**dispatch.personal.get(client, {}), **client_groups}
        for client, client_groups in personal.items()
    }
    bytes_down = dispatch.received_bytes(dispatch.clients).tolist()
    received = dict(zip(dispatch.clients, bytes_down, strict=True))
    riding = replace(
        dispatch,
        rules=replace(dispatch.rules, start=partial(_start, dispatch.rules.start, added)),
        broadcast={**dispatch.broadcast, **groups},
        personal=sent,
        bytes_down=lambda client: received[client] - nbytes(sent.get(client, {})),
    )
    return riding.with_step(
        UploadStep(after=partial(_figures, parts), server=partial(_received, keep))
    )


def _start(
    start: Start, added: Sequence[str], broadcast: Groups, state: Groups, personal: Groups
) -> Tensors:
    """Call the method's `start` without the added groups."""
    seen = [{n: g for n, g in groups.items() if n not in added} for groups in (broadcast, personal)]
    return start(seen[0], state, seen[1])


def _figures(
    parts: Mapping[str, ClientPart], view: View, trained: Trained, upload: Upload
) -> Upload:
    """Return the upload with the figures of parts; a part with non-finite figures is left out."""
    figures = {f"{GROUP}{name}": _measured(part, view, trained) for name, part in parts.items()}
    finite = {name: group for name, group in figures.items() if _is_finite(group)}
    return replace(upload, rows={**upload.rows, **finite}, bytes_up=upload.sent_bytes())


def _is_finite(group: Tensors) -> bool:
    return bool(group) and all(map(is_finite, group.values()))


def _measured(part: ClientPart, view: View, trained: Trained) -> Tensors:
    """Return the figures of a part; none if it fails, because the client must not fail with it."""
    try:
        return part(view, trained)
    except Exception as error:
        if isinstance(error, MachineError | MemoryError) or is_device_error(error):
            raise
        return {}


def for_round_alone(view: View, trained: Trained, upload: Upload) -> Upload:
    """Return an upload that keeps the client state for this round only."""
    round_state = {**upload.state, **upload.round_state}
    return replace(upload, state={}, round_state=round_state)


def _received(keep: Callable[[Figures], None], reduced: Reduced) -> Reduced:
    """Hand the figures to `keep`; return the result without them."""
    figures: Figures = {}
    rows: dict[int, Groups] = {}
    for client, groups in sorted(reduced.rows.items()):
        of_method = {name: group for name, group in groups.items() if not name.startswith(GROUP)}
        rows |= {client: of_method} if of_method else {}
        for name in groups.keys() - of_method.keys():
            figures.setdefault(name.removeprefix(GROUP), {})[client] = groups[name]
    keep(figures)
    return replace(reduced, rows=rows)
