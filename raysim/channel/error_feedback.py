"""Error feedback: a client adds what the stages behind have not sent so far.

Source: Seide, Fu, Droppo, Li and Yu, "1-Bit Stochastic Gradient Descent and its Application to
Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014; Karimireddy, Rebjock, Stich
and Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019,
algorithm 2.

    p = d + e_k        send c(p), by all stages behind        e_k <- p - c(p), 0 at first

One memory for all coders behind it together: `topk` and then `qsgd` leave one error. They must be
contractions: `randk` and `qsgd` with `unbiased=false`, no clip.

- Stale memory: e_k is added at the client's next turn as it is, however many rounds have passed.
  Theory is for full participation; with few turns a client, memories are large and old.
- Lost messages: a client whose result does not count (late, dropped out, failed, a round lost) has
  not taken part: e_k stays as it was before, and its update is lost, as without error feedback.
- A coder before it is coded again behind it: what was sparse, or of few bits, is so no more with
  the memory added.
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
"""Group of what a client has not sent so far."""


class ErrorFeedback(Stage):
    """Add what the stages behind have not sent so far, and keep what they do not send now.

    Helps all biased coders: in the end everything is sent. Costs an upload of state for each client
    that ever took part.
    """

    keeps_residual: ClassVar[bool] = True  # the memory is added
    leaves_buffers: ClassVar[bool] = True  # no coder leaves anything of them out

    def has_effect(self, behind: Sequence[Stage]) -> bool:
        """Return whether a stage behind changes what clients send."""
        return any(type(stage).send is not Stage.send for stage in behind)

    def send(self, view: View, upload: Upload) -> Upload:
        """Add what was not sent."""
        error = view.state.get(ERROR, {})
        whole = {name: _with(d, error.get(name)) for name, d in flatten(upload.sums).items()}
        return replace(upload, sums=unflatten(whole))

    def encoded(self, sent: Encoding, layout: Layout, client: int) -> Encoding:
        """Return values of all differences: those of the memory lie at any place."""
        return Encoding.of(layout)

    def remember(self, view: View, returned: Upload, sent: Groups) -> Groups:
        """Keep what was not sent, beside the memory of groups that were not in this upload."""
        coded, dtype = flatten(sent), dtype_of(view)
        left = {name: (p - coded[name]).to(dtype) for name, p in flatten(returned.sums).items()}
        return {ERROR: {**view.state.get(ERROR, {}), **left}}


def _with(difference: Tensor, error: Tensor | None) -> Tensor:
    """Return the sum; a memory of another shape, as of a network that has grown, is dropped."""
    if error is None or error.shape != difference.shape:
        return difference
    return difference + error
