"""Formulas of the analyses, in float64.

Sources: FedMAX, section 4.1 (KL divergence of mean activations); Kornblith et al., ICML 2019, and
FLex&Chill, eq. 3 (linear CKA); Shannon (mutual information, in nats).

Legend: N samples, F features, C and D classes.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from raysim.numbers.arrays import Array
from raysim.numbers.tensors import as_real


def log_softmax(values: Array) -> Array:
    """Return the logarithm of the softmax over the last dimension."""
    shifted = values.astype(np.float64) - values.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def kl_divergence(log_p: Array, log_q: Array) -> float:
    """Return KL(p || q) of the logarithms of two distributions [F]; terms with p=0 are 0.

    By logarithms, because the softmax of values that are 746 or more below the largest is 0.
    """
    present = np.exp(log_p) > 0
    return float(np.sum(np.exp(log_p[present]) * (log_p[present] - log_q[present])))


def gram(features: Tensor) -> Tensor:
    """Return the Gram matrix [N, N] of centred features [N, ...], of norm 1; 0 where all agree.

    Complex features are pairs of reals.
    By torch, which runs on one thread in every worker: NumPy's products differ with its threads.
    """
    flat = as_real(features).flatten(1).double()
    centred = flat - flat.mean(dim=0)
    products = centred @ centred.T
    norm = products.norm()
    return products / norm if norm > 0 else products


def cka(one: Array, other: Array) -> float:
    """Return the linear CKA of features from their two Gram matrices [N, N] of norm 1.

    It is ||Y^T X||^2 / (||X^T X|| ||Y^T Y||) of centred features X and Y, since the squared norm is
    the scalar product of X X^T and Y Y^T.
    """
    return float(np.sum(one * other))


def joint_counts(ones: Array, others: Array) -> Array:
    """Return how often two lists of classes [N] have each pair of classes [C, D]."""
    counts = np.zeros((int(ones.max()) + 1, int(others.max()) + 1), dtype=np.int64)
    np.add.at(counts, (ones, others), 1)
    return counts


def entropy(counts: Array) -> float:
    """Return the entropy of counts of any shape, in nats."""
    shares = counts[counts > 0] / counts.sum()
    return float(-np.sum(shares * np.log(shares)))


def mutual_information(counts: Array) -> float:
    """Return the mutual information of joint counts [C, D], in nats."""
    apart = entropy(counts.sum(axis=1)) + entropy(counts.sum(axis=0))
    return max(apart - entropy(counts), 0.0)
