"""Secure aggregation: the server sees sums of uploads, under masks that cancel in them.

A stage of the channel states it (`Stage.secure_sum`), and the engine masks its own integers. Client
k adds words of 64 bits to the integers v_k of its upload, its weight included:

    y_k = v_k + sum over neighbours j > k of PRG(s_kj) - sum over neighbours j < k of PRG(s_jk)
              + PRG(b_k)      mod 2^64

PRG is AES-128 in counter mode, as in Bonawitz et al., section 4. s_kj is the seed of a pair, b_k
the client's own seed. The masks of a pair cancel in the sum. For a lost client k the server
rebuilds the seeds s_kj of its pairs with present neighbours, for a present client its b_k. It never
rebuilds both for one client: with both it would see v_k.

A sum of some clients' y_k contains the clients' own masks and the masks of their pairs with other
clients. Masks of pairs within the sum cancel, so they are never drawn; the words are the same.

Legend: n clients of a pass, k neighbours of each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import floor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from raysim.numbers.arrays import Integers
from raysim.numbers.encoding import Traffic
from raysim.numbers.seeds import digest_of, stream
from raysim.numbers.tensors.exact import ExactSum

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

KEY_BYTES = 32
"""Bytes of a public key; each client has two, for masks and for encrypted shares."""
SHARE_BYTES = 32
"""Bytes of a share of a secret."""
BLOCK = 16_384
"""Words that are masked at a time, so that they stay in cache."""
_ZEROS = memoryview(bytes(8 * BLOCK))


@dataclass(frozen=True)
class SecureSum:
    """Statement that the server sees only sums of a pass's clients, and the clients' cost of it.

    Attributes:
        neighbours: k, an even number of neighbours of each client; None: all others.
        bits: Bits of a word of a deployment's modulus; every value is sent in one word.
        threshold: Share of a secret's holders, a client and its neighbours; more holders than this
            can rebuild the secret.
    """

    neighbours: int | None
    bits: int
    threshold: float

    def __post_init__(self) -> None:
        k = self.neighbours
        if k is not None and (k < 2 or k % 2):
            raise ValueError(f"neighbours={k}: must be even, from 2 on")

    def degree(self, clients: int) -> int:
        """Return k, the neighbours of each of n clients."""
        others = clients - 1
        return others if self.neighbours is None else min(self.neighbours, others)

    def least(self, clients: int) -> int:
        """Return t, the holders of a secret that must be left."""
        return floor(self.threshold * (self.degree(clients) + 1)) + 1

    def beside(self, clients: int) -> Traffic:
        """Return the traffic of one of n clients besides masked values and the model.

        It sends keys, a share of its two secrets to each neighbour, one of each holder's to the
        server, and its weight; it receives its neighbours' keys and shares. The trips: public keys,
        shares, masked words, shares to rebuild.
        """
        k = self.degree(clients)
        up = 2 * KEY_BYTES + (2 * k + k + 1) * SHARE_BYTES + -(-self.bits // 8)
        return Traffic(up, k * (2 * KEY_BYTES + 2 * SHARE_BYTES), trips=4)


class Rebuilt(NamedTuple):
    """Secrets that the server rebuilds to unmask a sum.

    Attributes:
        own: The present clients; the server rebuilds their own seeds.
        pairs: Pairs of a present client and a lost neighbour.
    """

    own: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Masks:
    """Masks of one pass.

    Attributes:
        secure: Their cost.
        keys: Seed, round and pass.
        clients: The clients that agreed on seeds, including clients that are lost later.
    """

    secure: SecureSum
    keys: tuple[int, int, int]
    clients: tuple[int, ...]

    def add_to(
        self, totals: Sequence[Integers], clients: Collection[int], *, sign: int = 1
    ) -> None:
        """Add the masks of the sum of some clients to its words, modulo 2^64, in place.

        Args:
            totals: The words of the sum; a mask goes on from one array to the next.
            clients: The summed clients.
            sign: -1 removes the masks.
        """
        rebuilt = self.rebuilt(clients)
        streams = [(self._words("own", client), sign) for client in rebuilt.own]
        streams += [
            (self._words("pair", min(pair), max(pair)), sign if pair[0] < pair[1] else -sign)
            for pair in rebuilt.pairs
        ]
        for total in totals:
            words = total.view(np.uint64)
            for start in range(0, len(words), BLOCK):
                block = words[start : start + BLOCK]
                for source, times in streams:
                    drawn = np.frombuffer(source.update(_ZEROS[: block.nbytes]), np.uint64)
                    (np.add if times > 0 else np.subtract)(block, drawn, out=block)

    def rebuilt(self, present: Collection[int]) -> Rebuilt:
        """Return the secrets that unmask the sum of the clients that are present."""
        inside = {*present}
        return Rebuilt(tuple(sorted(inside)), tuple(self._pairs_across(inside)))

    def is_lost(self, present: Collection[int]) -> bool:
        """Return whether too few clients are present to rebuild the secrets."""
        inside, n = {*present}, len(self.clients)
        least = self.secure.least(n)
        if self._is_complete:
            return len(inside) < least
        needed = inside | {lost for _, lost in self._pairs_across(inside)}
        held = (len(inside.intersection([k, *self._neighbours(k)])) for k in needed)
        return any(count < least for count in held)

    @property
    def _is_complete(self) -> bool:
        return self.secure.degree(len(self.clients)) == len(self.clients) - 1

    def _pairs_across(self, inside: Collection[int]) -> Iterator[tuple[int, int]]:
        """Yield the pairs of a client inside and a neighbour that is not."""
        if self._is_complete:
            yield from product(inside, [k for k in self.clients if k not in inside])
            return
        for client in inside:
            yield from ((client, k) for k in self._neighbours(client) if k not in inside)

    def _neighbours(self, client: int) -> list[int]:
        """Return the k neighbours of a client: k/2 on either side in a random circle."""
        circle, place = self._circle, self._places[client]
        sides = range(1, self.secure.degree(len(circle)) // 2 + 1)
        return [circle[(place + step) % len(circle)] for near in sides for step in (near, -near)]

    @cached_property
    def _circle(self) -> list[int]:
        seed, *places = self.keys
        drawn: list[int] = stream(seed, "masks/circle", *places).permutation(self.clients).tolist()
        return drawn

    @cached_property
    def _places(self) -> dict[int, int]:
        return {client: place for place, client in enumerate(self._circle)}

    def _words(self, purpose: str, *clients: int) -> CipherContext:
        """Return the PRG of a seed."""
        seed, *places = self.keys
        return key_stream(seed, f"masks/{purpose}", *places, *clients)


def words_of(total: ExactSum) -> list[Integers]:
    """Return the totals of floats, dtype by dtype in a fixed order, to change in place.

    A change modulo 2^64 can be undone in any sum that the totals are merged into.
    """
    kinds = total.totals()
    floats = [dtype for dtype in kinds if dtype.is_floating_point or dtype.is_complex]
    return [kinds[dtype].numpy() for dtype in sorted(floats, key=str)]


def key_stream(seed: int, purpose: str, *keys: int) -> CipherContext:
    """Return an AES-128 cipher in counter mode, keyed like `stream`.

    What it encrypts is xored with its key stream: zeros return the stream itself.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher(algorithms.AES(digest_of(seed, purpose, keys)), modes.CTR(bytes(16))).encryptor()
