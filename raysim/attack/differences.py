"""Parts of attacks on the upload of a client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from raysim.api.rules import Upload


def changed(upload: Upload, change: Callable[[Tensor], Tensor]) -> Upload:
    """Return an upload with each difference changed, by name."""
    return replace(
        upload,
        sums={
            group: {name: change(tensors[name]) for name in sorted(tensors)}
            for group, tensors in upload.sums.items()
        },
    )
