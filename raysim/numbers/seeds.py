"""Random streams: generators keyed by (seed, purpose, keys...), the source of every draw.

A stream depends on its key alone, never on earlier draws, so neither the order in which clients
train nor their place can change a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def digest_of(seed: int, purpose: str, keys: tuple[int, ...]) -> bytes:
    """Return the key of one purpose, 16 bytes."""
    return blake2b(repr((seed, purpose, *keys)).encode(), digest_size=16).digest()


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """Return the NumPy generator of one purpose, for example ("batches", round, client)."""
    key = int.from_bytes(digest_of(seed, purpose, keys), "little")
    return np.random.Generator(np.random.Philox(key=key))


def torch_seed(seed: int, purpose: str, *keys: int) -> int:
    """Return a 63-bit seed for torch's generators, keyed like `stream`."""
    return int.from_bytes(digest_of(seed, purpose, keys)[:8], "little") >> 1


def sample_cohort(generator: np.random.Generator, clients: int, size: int) -> list[int]:
    """Return `size` distinct client ids, uniform without replacement, ascending.

    The cost grows with the cohort, not with the population.
    """
    return sorted(generator.choice(clients, size=size, replace=False, shuffle=False).tolist())


def torch_generator(
    seed: int, purpose: str, *keys: int, device: torch.device | str = "cpu"
) -> torch.Generator:
    """Return torch's generator of one purpose on a device, keyed like `stream`."""
    import torch

    return torch.Generator(device).manual_seed(torch_seed(seed, purpose, *keys))


def owned_generator(
    seed: int, owner: str, keys: Sequence[int], purpose: str, device: torch.device | str = "cpu"
) -> torch.Generator:
    """Return torch's generator of one of an owner's purposes, which no other owner draws from."""
    return torch_generator(seed, f"{owner}/{purpose}", *keys, device=device)


@contextmanager
def seeded(seed: int, purpose: str, *keys: int) -> Iterator[None]:
    """Key torch's global generator like `stream` within a block, and restore it after.

    Modules draw their first weights from it as they are built.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which seeds all devices: that takes 200 times as long.
        torch.default_generator.manual_seed(torch_seed(seed, purpose, *keys))
        yield
