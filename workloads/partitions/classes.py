"""Clients that hold a fixed number of classes each.

Source: Chen, Bhardwaj and Marculescu, FedMAX: Mitigating Activation Divergence for Accurate and
Communication-Efficient Federated Learning, ECML PKDD 2020, section 4.3: each device is given data
of 20 of the 26 classes of FEMNIST*. Deviation: in the authors' public code devices draw pieces of a
class with replacement; here the clients that hold a class divide it, so nothing is held twice.

`assigned="in_order"` with `shares="random"` is the pathological partition of PFLlib's code (Zhang
et al., JMLR 2025, `separate_data`): each class in turn goes to the first K * per_client / C clients
that hold fewer than `per_client`, so that some clients hold the same classes; all but the last of
them draw from a tenth of an equal share up to all of it, and the last client takes what is left, of
each of its classes.
"""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from raysim.errors import DataError
from raysim.numbers.arrays import Flags
from raysim.numbers.seeds import stream
from raysim.samples.client_indices import Indices, ListedIndices
from raysim.samples.data import Split
from raysim.user_input.limits import Count
from raysim.workloads.partitions.checks import one_sample_each
from raysim.workloads.partitions.sizes import Sized, dealt


class Classes(Sized):
    """Give each client some classes; a class is divided among its holders.

    The numbers of holders of any two classes differ by at most one. Every sample is used, unless
    all clients together hold fewer classes than there are.

    Attributes:
        per_client: Classes that a client holds.
        sizes: If given, the holders of a class divide it by r_k, and `shares` is equal.
    """

    per_client: Count = 2
    assigned: Literal["random", "in_order"] = Field(
        default="random", description="which classes: at random, or the first with clients to fill"
    )
    shares: Literal["equal", "random"] = Field(
        default="equal", description="parts of a class: equal, or drawn from a tenth of that to all"
    )

    @model_validator(mode="after")
    def _one_division(self) -> Self:
        if self.sizes is not None and self.shares != "equal":
            raise ValueError(
                f"shares={self.shares}: must be equal with partition.sizes={self.sizes}"
            )
        return self

    def split(self, data: Split, clients: int, seed: int) -> ListedIndices:
        """Give each client samples of `per_client` classes; in order, the last may hold fewer.

        Raises:
            DataError: there are fewer classes than that, a class has too few samples, or `sizes`
                are given and no two clients hold the same class.
        """
        one_sample_each(data, clients)
        generator = stream(seed, "classes")
        labels = np.unique(data.y)
        held = self._held(len(labels), clients, generator)
        if self.sizes and (held.sum(axis=0) < 2).all():
            raise DataError(
                f"partition.sizes={self.sizes}: needs clients that divide a class by their sizes,"
                f" and with partition.per_client={self.per_client}, clients={clients} no class of"
                f" {len(labels)} has two; raise one of the two"
            )
        ratios = self.client_ratios(clients, stream(seed, "sizes")) if self.sizes else None
        owners = np.full(len(data), -1)
        for label, of_class in zip(labels, held.T, strict=True):
            holders = np.flatnonzero(of_class)
            if self.assigned == "random":
                holders = generator.permutation(holders)
            members = generator.permutation(np.flatnonzero(data.y == label))
            if len(holders) > len(members):
                raise DataError(
                    f"partition.per_client={self.per_client}, clients={clients}: class {label} has"
                    f" {len(members)} samples for {len(holders)} clients; lower one of the two"
                )
            if len(holders) and ratios is not None:
                owners[members] = np.repeat(holders, dealt(ratios[holders], len(members)))
            elif len(holders) and self.shares == "equal":
                owners[members] = np.resize(holders, len(members))  # in turns
            elif len(holders):
                owners[members] = np.repeat(holders, unequal(len(members), len(holders), generator))
        return ListedIndices.of_owners(owners, clients)

    def _held(self, classes: int, clients: int, generator: np.random.Generator) -> Flags:
        """Draw which classes each client holds [K, C]."""
        if self.per_client > classes:
            raise DataError(
                f"partition.per_client={self.per_client}: the dataset has {classes} classes;"
                " a client holds at most all of them"
            )
        held = np.zeros((clients, classes), dtype=np.bool_)
        if self.assigned == "in_order":
            for label in range(classes):
                open_to = np.flatnonzero(held.sum(axis=1) < self.per_client)
                held[open_to[: -(-clients * self.per_client // classes)], label] = True
            return held
        holders = np.zeros(classes, dtype=np.int64)
        for client in range(clients):
            # The classes with the fewest holders so far, ties at random.
            chosen = np.lexsort([generator.random(classes), holders])[: self.per_client]
            held[client, chosen] = True
            holders[chosen] += 1
        return held


def unequal(total: int, parts: int, generator: np.random.Generator) -> Indices:
    """Return `parts` unequal whole numbers with a sum: all but the last are drawn, of a mean share.

    Each is drawn uniformly from a tenth of an equal share, at least 1, up to below the share.
    """
    share = total / parts
    least = max(int(share / 10), 1)
    drawn = generator.integers(least, max(int(share), least + 1), size=parts - 1)
    return np.append(drawn, total - drawn.sum())
