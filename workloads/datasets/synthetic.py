"""synthetic(gamma1, gamma2): generated data with heterogeneous clients.

Source: Chen, Bhardwaj and Marculescu, FedMAX: Mitigating Activation Divergence for Accurate and
Communication-Efficient Federated Learning, ECML PKDD 2020, section 4.1, after Li et al. (FedProx).
For each user k:

    x ~ N(v_k, diag(1 / j^1.2)) in R^1024      elements of v_k ~ N(B_k, 1)     B_k ~ N(0, gamma1)
    y = argmax(w2 ReLU(w1 x + b1) + b2)        elements of w, b ~ N(u_k, 1)    u_k ~ N(0, gamma2)

with 512 hidden units and 10 classes. The second argument of N is a variance, as the text's
covariance is; the authors' public code takes gamma1 and gamma2 as standard deviations, which is the
same for 0 and 1 (for its 0.5, set 0.25). The text prints the shapes of w1 and w2 in reverse. The
number of samples is not printed; there are five times as many for training as for testing, as in
that code. Test samples come from the same users.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from raysim.display.units import in_fitting_unit
from raysim.errors import DataError
from raysim.samples.client_indices import Indices
from raysim.samples.data import Dataset, Progress, Split
from raysim.user_input.limits import Count, DataSeed
from raysim.workloads.datasets.drawn import data_stream
from raysim.workloads.datasets.prepared import prepare_once

INPUTS, HIDDEN, CLASSES = 1024, 512, 10

Floats = npt.NDArray[np.float32]

DEVIATIONS = np.arange(1, INPUTS + 1, dtype=np.float32) ** np.float32(-0.6)
"""Standard deviation of each input, the root of the variance 1 / j^1.2."""


class Synthetic(Dataset):
    """Generated data of users with their own distributions and labelling networks (FedMAX).

    The column `user` numbers the users, so that they are the clients of `partition.name=by_key
    partition.key=user` with `clients` equal to `dataset.users`.
    """

    gamma1: float = Field(default=1.0, ge=0, description="variance of the users' input means")
    gamma2: float = Field(default=1.0, ge=0, description="variance of the users' weight means")
    users: Count = Field(default=100, description="number of users")
    samples: Count = Field(default=100, description="training samples of a user")
    test_samples: Count = Field(default=20, description="test samples of a user")
    seed: DataSeed = Field(
        default=0, description="seed of the data; run: that of the run, so that each has its own"
    )
    shape: ClassVar[tuple[int, ...]] = (INPUTS,)
    classes: ClassVar[int] = CLASSES
    client_column: ClassVar[str] = "user"

    def prepare(self, root: Path, progress: Progress) -> Mapping[str, Path]:
        """Draw the samples, and write each split as an Arrow file."""
        variant = ",".join(f"{name}={value}" for name, value in self.model_dump().items())
        if not (root / "synthetic" / "prepared" / variant).exists():
            needed = self.users * (self.samples + self.test_samples) * INPUTS * DEVIATIONS.itemsize
            existing = next(path for path in (root, *root.absolute().parents) if path.exists())
            free = shutil.disk_usage(existing).free
            if needed > free:
                raise DataError(
                    f"dataset.users={self.users}: with dataset.samples={self.samples} and"
                    f" dataset.test_samples={self.test_samples} they take"
                    f" {in_fitting_unit(needed, 'B')}; {root} has {in_fitting_unit(free, 'B')} free"
                )
        return prepare_once(
            root / "synthetic", ("train", "test"), lambda folder: self._drawn(), progress, variant
        )

    def _drawn(self) -> dict[str, Split]:
        counts = {"train": self.samples, "test": self.test_samples}
        x = {split: np.empty((self.users, n, INPUTS), np.float32) for split, n in counts.items()}
        y = {split: np.empty((self.users, n), np.int64) for split, n in counts.items()}
        for user in range(self.users):
            drawn = self._inputs(user)
            labels = self._labels(user, drawn)
            x["train"][user], x["test"][user] = np.split(drawn, [self.samples])
            y["train"][user], y["test"][user] = np.split(labels, [self.samples])
        return {
            split: Split(
                x[split].reshape(-1, INPUTS),
                y[split].reshape(-1),
                {"user": np.repeat(np.arange(self.users), n)},
            )
            for split, n in counts.items()
        }

    def _stream(self, purpose: str, user: int) -> np.random.Generator:
        return data_stream(self.seed, purpose, user)

    def _inputs(self, user: int) -> Floats:
        """Draw the inputs [n, 1024] of a user, the training samples first."""
        draw = self._stream("synthetic-inputs", user)
        center = draw.normal(0, self.gamma1**0.5)  # B_k
        mean = draw.normal(center, 1, INPUTS).astype(np.float32)  # v_k
        shape = (self.samples + self.test_samples, INPUTS)
        return mean + DEVIATIONS * draw.standard_normal(shape, np.float32)

    def _labels(self, user: int, x: Floats) -> Indices:
        """Return the labels [n] that the user's own network gives inputs [n, 1024]."""
        draw = self._stream("synthetic-labels", user)
        center = np.float32(draw.normal(0, self.gamma2**0.5))  # u_k
        shapes = (INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)
        w1, b1, w2, b2 = (center + draw.standard_normal(shape, np.float32) for shape in shapes)
        return np.asarray((np.maximum(x @ w1 + b1, 0) @ w2 + b2).argmax(1), dtype=np.int64)
