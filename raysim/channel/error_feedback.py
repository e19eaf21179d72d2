"""Error feedback: a client adds the residual that later stages have not sent so far.

Source: Seide, Fu, Droppo, Li and Yu, "1-Bit Stochastic Gradient Descent and its Application to
Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014; Karimireddy, Rebjock, Stich
and Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019,
algorithm 2.

    p = d + e_k        send c(p), by all later stages         e_k <- p - c(p), 0 at first

All coders after it share one memory: `topk` and then `qsgd` leave one error. They must be
contractions: `randk` and `qsgd` with `unbiased=false`, no clip.

- Stale memory: e_k is added at the client's next turn as it is, however many rounds have passed.
  Theory is for full participation; with few turns a client, memories are large and old.
- Lost messages: a client without a result that counts (late, dropped out, failed, a round lost) has
  not taken part: e_k stays as it was before, and its update is lost, as without error feedback.
- Differences that a coder before it has made sparse, or of few bits, are no longer so once the
  memory is added; coders after it code them again.
- Where a client sends in several passes of a round, groups of the same name have one memory.
- Not where rounds overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from raysim.api.channel import Stage
from raysim.api.rules import Upload, View
from raysim.channel.coding import dtype_of
from raysim.numbers.encoding import Encoding
from raysim.numbers.tensors import Groups, Layout, flatten, unflatten

ERROR = "error"
"""Group of the residual, which a client has not sent so far."""


class ErrorFeedback(Stage):
    """Add the residual that later stages have not sent so far, and keep the new one.

    Helps all biased coders: in the end everything is sent. Costs an upload of state for each client
    that ever took part.
    """

    keeps_residual: ClassVar[bool] = True  # the memory is added
    leaves_buffers: ClassVar[bool] = True  # no coder leaves anything of them out

    def has_effect(self, behind: Sequence[Stage]) -> bool:
        """Return whether a later stage changes uploads."""
        return any(type(stage).send is not Stage.send for stage in behind)

    def send(self, view: View, upload: Upload) -> Upload:
        """Add the residual."""
        error = view.state.get(ERROR, {})
        whole = {name: _with(d, error.get(name)) for name, d in flatten(upload.sums).items()}
        return replace(upload, sums=unflatten(whole))

    def encoded(self, sent: Encoding, layout: Layout, client: int) -> Encoding:
        """Return values of all differences: the memory has values at any place."""
        return Encoding.of(layout)

    def remember(self, view: View, returned: Upload, sent: Groups) -> Groups:
        """Keep the new residual, and the memory of groups that are not in this upload."""
        coded, dtype = flatten(sent), dtype_of(view)
        left = {name: (p - coded[name]).to(dtype) for name, p in flatten(returned.sums).items()}
        return {ERROR: {**view.state.get(ERROR, {}), **left}}


def _with(difference: Tensor, error: Tensor | None) -> Tensor:
    """Return the sum; a memory of another shape, as of a network that has grown, is dropped."""
    if error is None or error.shape != difference.shape:
        return difference
    return difference + error
