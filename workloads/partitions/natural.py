"""Natural clients of a dataset: the writers of FEMNIST, the roles of Shakespeare, a table's column.

Source: Caldas et al., LEAF: a Benchmark for Federated Settings, arXiv:1812.01097, 2018.
"""

from __future__ import annotations

from raysim.errors import DataError
from raysim.numbers.arrays import Array
from raysim.samples.data import NATURAL, Split
from raysim.workloads.partitions.by_key import ByKey


class Natural(ByKey):
    """One client per natural client of the dataset; `clients` is the number that takes part.

    By default, that is all of them. It is `by_key` on the dataset's own column: `writer` of
    FEMNIST, `role` of Shakespeare, the column that `dataset.client` names of `files`.
    """

    key: str = NATURAL

    def _keys(self, data: Split) -> Array:
        """Return the client of each sample [N].

        Raises:
            DataError: the dataset has no natural clients.
        """
        if self.key == NATURAL and NATURAL not in data.columns:
            raise DataError(
                "partition.name=natural: the dataset has no natural clients; of files,"
                " dataset.client names their column, or each has a file or folder of its own"
            )
        return super()._keys(data)
