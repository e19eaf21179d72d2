"""User-specific clients: each sees all images through a pixel permutation of its own.

Source: Yao et al., Federated Learning with Additional Mechanisms on Clients to Reduce Communication
Costs, arXiv:1908.05891, 2019, section 4.3.2 (FedFusion on Permuted MNIST), after Goodfellow et al.,
arXiv:1312.6211, 2013. The paper does not say who holds which samples, nor through which permutation
the test set is seen. Chosen: the IID partition, and test samples dealt evenly over the users.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raysim.numbers.seeds import stream
from raysim.samples.client_indices import Indices
from raysim.workloads.partitions.iid import Iid


class Permuted(Iid):
    """Cut as `iid`; each client has its own fixed permutation of pixels, the same in all channels.

    A permutation depends on the seed and the client's number alone. Test sample i is seen through
    that of client i mod K, so the test accuracy is the mean over users, each on its own part of the
    test set. Inputs without rows and columns are permuted by feature.
    """

    def client_view(self, x: Tensor, rows: Tensor, client: int, seed: int) -> Tensor:
        """Permute the pixels of a client's inputs [n, ch, H, W] or [n, ...]."""
        return _permute(x, _order(x, client, seed)[None])

    def test_view(self, x: Tensor, rows: Tensor, clients: int, seed: int) -> Tensor:
        """Permute the pixels of each test input as its client has them."""
        users, of_row = np.unique(rows.cpu().numpy() % clients, return_inverse=True)
        orders = np.stack([_order(x, user, seed) for user in users.tolist()])
        return _permute(x, orders[of_row])


def _flat(x: Tensor) -> Tensor:
    """Return inputs [n, ch, H, W] as [n, ch, H*W], others as [n, F]."""
    return x.flatten(2) if x.ndim == 4 else x.flatten(1)


def _order(x: Tensor, client: int, seed: int) -> Indices:
    return stream(seed, "permuted", client).permutation(_flat(x).shape[-1])


def _permute(x: Tensor, orders: Indices) -> Tensor:
    """Return inputs whose pixel j is pixel orders[:, j] of x; orders are [n, P] or [1, P]."""
    flat = _flat(x)
    index = torch.from_numpy(orders).to(x.device)
    index = index[:, None] if flat.ndim == 3 else index
    return flat.gather(-1, index.expand_as(flat)).reshape(x.shape)
