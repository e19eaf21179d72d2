"""Uploads with changed differences, for stages of the channel and for attacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from raysim.api.differences import Differences
from raysim.api.rules import Bases, Trained, Upload, View
from raysim.numbers.tensors import Groups, Layout

Change = Callable[[View, Upload, Upload, Layout], tuple[Groups, Mapping[str, Any]]]
"""`change(view, upload, given, layout)`: returns new differences in place of the given ones, and
new values of other attributes of the upload. `layout` is the layout of the given differences."""


def send_changed(
    bases: Bases, change: Change, view: View, trained: Trained, upload: Upload
) -> Upload:
    """Return a client's upload with changed differences.

    Args:
        bases: Bases of the groups that have differences.
        change: Changes the differences.
        view: The client.
        trained: The result of its training.
        upload: Its upload so far.
    """
    differences = Differences.of(upload.sums, bases, view.broadcast, params=view.params)
    if not differences.changes:
        return upload
    difference_upload = Upload(sums=differences.changes, samples=len(trained.samples.y))
    changes, others = change(view, upload, difference_upload, differences.layout)
    sums, dtypes = differences.with_changes(changes)
    # A tensor that an earlier step changed keeps the dtype from before that step.
    return replace(upload, sums=sums, dtypes={**dtypes, **upload.dtypes}, **others)
