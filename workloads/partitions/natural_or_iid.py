"""Natural clients where the data has them, else clients of equal size."""

from __future__ import annotations

from collections.abc import Sequence

from raysim.samples.client_indices import ClientIndices, Indices
from raysim.samples.data import NATURAL, Partition, Split
from raysim.workloads.partitions.iid import Iid
from raysim.workloads.partitions.natural import Natural


class NaturalOrIid(Partition):
    """The partition `natural` if the data has natural clients, else `iid`."""

    @staticmethod
    def _rule(train: Split) -> Partition:
        return Natural() if NATURAL in train.columns else Iid()

    def split(self, data: Split, clients: int, seed: int) -> ClientIndices:
        """Assign samples to natural clients, or every sample to one of the clients.

        Raises:
            DataError: there are more clients than natural clients, or than samples.
        """
        return self._rule(data).split(data, clients, seed)

    def natural_clients(self, train: Split) -> int | None:
        """Return the number of natural clients; None if the data has none."""
        return self._rule(train).natural_clients(train)

    def split_test(
        self, train: Split, test: Split, held: ClientIndices
    ) -> Sequence[Indices] | None:
        """Return the test samples of each natural client."""
        return self._rule(train).split_test(train, test, held)

    def client_names(self, train: Split, held: ClientIndices) -> Sequence[object] | None:
        """Return the name of each natural client."""
        return self._rule(train).client_names(train, held)
