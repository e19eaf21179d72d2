"""Natural clients: the samples of one writer, role, subject or user each.

Sources: Caldas et al., LEAF: a Benchmark for Federated Settings, arXiv:1812.01097, 2018: one client
per writer of FEMNIST, per role of Shakespeare. Chandran et al. (see `color_skew`), section 4.1: of
the roles with 10,000 data points or more, 66 at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field

from raysim.errors import DataError
from raysim.numbers.arrays import Array
from raysim.numbers.seeds import stream
from raysim.samples.client_indices import ClientIndices, Indices, ListedIndices
from raysim.samples.data import Partition, Split
from raysim.user_input.limits import Count
from raysim.workloads.partitions.checks import column


def _by_name(limits: dict[str, float]) -> dict[str, float]:
    """Return limits in one order, as theirs does not count; that of other settings does."""
    return dict(sorted(limits.items()))


class ByKey(Partition):
    """One client per value of a column; `clients` is the number of values that take part.

    By default, that is all of them. Clients are numbered in the order of their values. Samples of
    other values are left out, and so are their test samples (`evaluation.test_samples=clients`), as
    FedMA's code joins those of its 66 roles. The limits below count training samples; a client has
    all its test samples.

    Attributes:
        key: Column whose values are the clients.
        minimum: Samples that a value must have to become a client.
        at_least: Least value per further column, of numbers, that every sample of a client must
            have, for example `partition.at_least.characters=10000`.
        choose: Choice of the values that become clients if there are more than `clients`: a random
            draw, or the values with most samples (ties in their order).
    """

    key: str = "writer"
    minimum: Count = 1
    at_least: Annotated[dict[str, float], AfterValidator(_by_name)] = Field(default_factory=dict)
    choose: Literal["random", "largest"] = "random"

    def split(self, data: Split, clients: int, seed: int) -> ListedIndices:
        """Give each client all samples of its value.

        Raises:
            DataError: there is no such column, or it has fewer fitting values than clients.
        """
        values, of_sample = np.unique(self._keys(data), return_inverse=True)
        sizes = np.bincount(of_sample)
        fitting = self._fitting(data, of_sample, sizes)
        if clients > len(fitting):
            limits = [f"minimum={self.minimum}", *(f"{k}>={v:g}" for k, v in self.at_least.items())]
            raise DataError(
                f"clients={clients}: {len(fitting)} of the {len(values)} values of"
                f" partition.key={self.key} fit ({', '.join(limits)}); at most so many clients"
            )
        owners = np.full(len(values), -1)
        owners[self._chosen(fitting, sizes, clients, seed)] = np.arange(clients)
        return ListedIndices.of_owners(owners[of_sample], clients)

    def natural_clients(self, train: Split) -> int:
        """Return the number of values that may be clients.

        Raises:
            DataError: there is no such column.
        """
        _, of_sample = np.unique(self._keys(train), return_inverse=True)
        return len(self._fitting(train, of_sample, np.bincount(of_sample)))

    def _keys(self, data: Split) -> Array:
        """Return the value of each sample [N]."""
        return column(data, "key", self.key)

    def _fitting(self, data: Split, of_sample: Indices, sizes: Indices) -> Indices:
        """Return the numbers of the values that may be clients.

        Args:
            data: The training samples [N].
            of_sample: Number of each sample's value [N].
            sizes: Samples of each value.
        """
        fit = sizes >= self.minimum
        for name, least in self.at_least.items():
            fit[of_sample[self._numbers(data, name) < least]] = False
        return np.flatnonzero(fit)

    def split_test(
        self, train: Split, test: Split, held: ClientIndices
    ) -> Sequence[Indices] | None:
        """Return the test samples of each client's value, if the test set has the column."""
        if self.key not in test.columns:
            return None
        of_train, of_test = (column(data, "key", self.key) for data in (train, test))
        order = np.argsort(of_test, kind="stable")
        of_client = [of_train[held[client][:1]] for client in range(len(held.sizes))]
        first, last = (
            np.searchsorted(of_test[order], np.concatenate(of_client), side)
            for side in ("left", "right")
        )
        return [order[start:stop] for start, stop in zip(first, last, strict=True)]

    def client_names(self, train: Split, held: ClientIndices) -> list[str]:
        """Return the value of each client, as a word."""
        of_train = column(train, "key", self.key)
        return [str(of_train[held[client][0]]) for client in range(len(held.sizes))]

    def _chosen(self, fitting: Indices, sizes: Indices, clients: int, seed: int) -> Indices:
        if self.choose == "largest":
            order = np.argsort(-sizes[fitting], kind="stable")
        else:
            order = stream(seed, "by-key").permutation(len(fitting))
        return np.sort(fitting[order[:clients]])

    @staticmethod
    def _numbers(data: Split, name: str) -> npt.NDArray[np.number]:
        values = column(data, "at_least", name)
        if not np.issubdtype(values.dtype, np.number):
            raise DataError(f"partition.at_least.{name}: this column does not hold numbers")
        return values
