"""Uploads with other differences, as stages of the channel and attacks make them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from raysim.api.differences import Differences
from raysim.api.rules import Bases, Trained, Upload, View
from raysim.numbers.tensors import Groups, Layout

Change = Callable[[View, Upload, Upload, Layout], tuple[Groups, Mapping[str, Any]]]
"""`change(view, upload, given, layout)`: returns other differences than those given, whose layout
is that in which they would be sent, and other attributes of the upload."""


def send_changed(
    bases: Bases, change: Change, view: View, trained: Trained, upload: Upload
) -> Upload:
    """Return the upload of a client with other differences.

    Args:
        bases: Bases of the groups that have differences.
        change: Changes these.
        view: The client.
        trained: The end of its training.
        upload: Its upload so far.
    """
    differences = Differences.of(
        upload.sums, bases, view.broadcast, frozen=view.frozen, params=view.params
    )
    if not differences.changes:
        return upload
    given = Upload(sums=differences.changes, samples=len(trained.samples.y))
    changes, others = change(view, upload, given, differences.layout)
    sums, dtypes = differences.with_changes(changes)
    # Tensors that were changed before keep the dtypes that they had then.
    return replace(upload, sums=sums, dtypes={**dtypes, **upload.dtypes}, **others)
