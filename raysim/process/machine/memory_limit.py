"""Memory limit of a shell, `ulimit -v`: torch and Ray fail if they cannot map enough.

They fail in many ways: with an error of an import, of an allocation or of a thread, or at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from raysim.process.exits import FAULT, last_words

WANT = (
    *("failed to map segment", "annot allocate memory", "can't allocate memory", "bad_alloc"),
    *("can't start new thread", "unable to mmap"),
)
"""Parts of messages of errors for want of memory."""


def memory_limit() -> str:
    """Return the limit in words, with the command that lifts it; empty without a limit."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return ""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return ""
    return (
        f"ulimit -v allows a process {limit / 2**20:.0f} MiB of addresses, but torch and Ray"
        " reserve many more than they use: type ulimit -v unlimited, then the same command again"
    )


@contextmanager
def within_memory_limit() -> Iterator[None]:
    """Report in one line that memory ran short in the body, if the shell limits it."""
    if not (limit := memory_limit()):
        yield
        return
    with last_words(f"raysim: this process was ended; if it was for want of memory: {limit}"):
        try:
            yield
        except Exception as error:
            if not isinstance(error, MemoryError) and not any(w in str(error) for w in WANT):
                raise
            print(f"raysim: out of memory: {limit}", file=sys.stderr, flush=True)
            sys.exit(FAULT)
