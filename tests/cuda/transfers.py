"""Streams, events, and copies for which the host does not wait.

A copy with `non_blocking=True` is done when somebody waits for it, so what is done too early shows:

* the host's tensor that it fills is NaN until then;
* pinned memory that it reads, and that the host has changed before, is refused at the wait;
* what it brings to the device is refused to streams that do not come after it.

CUDA itself copies memory that is not pinned aside at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tests.cuda.memory import is_pinned, memory_of, poison, unseen

if TYPE_CHECKING:
    from tests.cuda.device import CudaDevice


@dataclass(eq=False)
class Transfer:
    """A copy that has not been waited for.

    Attributes:
        source: What it reads.
        target: What it fills.
        up: Whether to the device.
        line: The line that asked for it.
        after: The streams whose later work comes after it.
        content: What it read when it was asked for.
    """

    source: Tensor
    target: Tensor
    up: bool
    line: str
    after: set[Stream]
    content: Tensor = field(init=False)

    def __post_init__(self) -> None:
        with unseen():
            self.source, self.target = self.source.detach(), self.target.detach()
            self.content = self.source.clone()
            if not self.up:
                poison(self.target)

    def end(self) -> None:
        """Do the copy.

        Raises:
            RuntimeError: the host has changed what is copied.
        """
        with unseen():
            if not self.up:
                self.target.copy_(self.content)
            elif not _same_bytes(self.source, self.content):
                raise RuntimeError(
                    f"pinned memory changed before it was copied to the device: {self.line}"
                )


def _same_bytes(first: Tensor, second: Tensor) -> bool:
    one, other = (t.contiguous().reshape(-1).view(torch.uint8) for t in (first, second))
    return torch.equal(one, other)


class Transfers:
    """The copies that have not been waited for."""

    def __init__(self) -> None:
        self._open: list[Transfer] = []

    def begin(self, source: Tensor, target: Tensor, line: str, stream: Stream) -> None:
        """Take a copy that was asked for, from pinned memory or to the host."""
        up = not getattr(source.untyped_storage(), "on_gpu", False)
        if not up or is_pinned(source):
            self._open.append(Transfer(source, target, up, line, {stream}))

    def before(self, stream: Stream) -> list[Transfer]:
        """Return the copies after which a stream's next work comes."""
        return [each for each in self._open if stream in each.after]

    def has(self, transfers: list[Transfer]) -> bool:
        """Return whether one of these copies has not been waited for."""
        return any(each in self._open for each in transfers)

    def end(self, transfers: list[Transfer]) -> None:
        """End copies, which the host waits for, unless they have ended."""
        ending = [each for each in self._open if each in transfers]
        self._open = [each for each in self._open if each not in transfers]
        for each in ending:
            each.end()

    def check(self, tensors: list[Tensor], stream: Stream) -> None:
        """Check that a stream does not read or change what another one still copies.

        Raises:
            RuntimeError: it does.
        """
        memory = {memory_of(tensor) for tensor in tensors} if self._open else ()
        for each in self._open:
            used = each.target if each.up else each.source
            if stream not in each.after and memory_of(used) in memory:
                raise RuntimeError(f"used on another stream before it was copied: {each.line}")


class Stream:
    """Stand-in for torch.cuda.Stream, of the device that is active when it is used."""

    active: CudaDevice
    """The device."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = device

    def synchronize(self) -> None:
        """Wait for this stream."""
        self.active.wait(self)

    def wait_stream(self, other: Stream) -> None:
        """Let this stream's later work come after all that the other one has."""
        for each in self.active.transfers.before(other):
            each.after.add(self)

    def wait_event(self, event: Event) -> None:
        """Let this stream's later work come after what an event has recorded."""
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event that has recorded this stream."""
        event = event or Event()
        event.record(self)
        return event


class Event:
    """Stand-in for torch.cuda.Event."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._before: list[Transfer] = []

    def record(self, stream: Stream | None = None) -> None:
        """Record what a stream has to do so far."""
        active = Stream.active
        self._before = active.transfers.before(stream or active.current)

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream's later work come after this."""
        for each in self._before:
            each.after.add(stream or Stream.active.current)

    def synchronize(self) -> None:
        """Wait for what was recorded."""
        Stream.active.counts["syncs"] += 1
        Stream.active.transfers.end(self._before)

    def query(self) -> bool:
        """Return whether all that was recorded is done, of which nothing is before a wait."""
        return not Stream.active.transfers.has(self._before)
