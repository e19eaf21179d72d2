"""Giving freed memory back to the system.

glibc's allocator keeps what torch frees: aligned blocks of the size of a model do not fit the holes
that they left, so a driver's memory rose by a model a round, to several hundred megabytes, before
it fell again by chance.
"""

from __future__ import annotations

import ctypes


def release_freed_memory() -> None:
    """Return freed heap pages to the system where the C library can (glibc's malloc_trim)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
