"""Base classes of image datasets: bytes on disk, floats for the network."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from raysim.samples.data import Dataset, Progress, Split
from raysim.workloads.datasets.fetch import Source, check_published, obtain
from raysim.workloads.datasets.prepared import prepare_once
from raysim.workloads.transforms import normalise


class Images(Dataset):
    """Images stored as bytes [N, C, H, W].

    Attributes:
        mean: Mean of each channel, of values in [0, 1].
        std: Standard deviation of each channel.
    """

    normalised: bool = Field(
        default=True, description="subtract each channel's mean and divide by its deviation"
    )
    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]

    def decode(self, x: Tensor) -> Tensor:
        """Scale bytes [B, C, H, W] to [0, 1], then normalise them if `normalised` is set."""
        return self.scaled(x.float() / 255)

    def scaled(self, x: Tensor) -> Tensor:
        """Normalise images with values in [0, 1] if `normalised` is set."""
        return normalise(x, self.mean, self.std) if self.normalised else x


class PublishedImages(Images):
    """Images published as a few files; each file is read whole.

    Attributes:
        folder: The dataset's folder under the data root.
        md5s: The md5s of the decompressed files, if they are known.
        sources: Sources of missing files, tried in this order.
        published: Address of the files, for error messages.
    """

    pooled: bool = Field(
        default=False,
        description="add the test images to the training images; there is no test set then, and"
        " evaluation.local_test keeps some of each client's own",
    )
    folder: ClassVar[str]
    md5s: ClassVar[Mapping[str, str]] = {}
    sources: ClassVar[tuple[Source, ...]] = ()
    published: ClassVar[str] = ""

    @property
    def has_test(self) -> bool:
        """Say whether it has a test set: unless its images are pooled."""
        return not self.pooled

    @property
    @abstractmethod
    def files(self) -> Mapping[str, Collection[str]]:
        """Names of each split's files."""

    @property
    def variant(self) -> str:
        """Name of the prepared files, if one folder holds several datasets."""
        return ""

    @abstractmethod
    def read(self, split: str, folder: Path, contents: Mapping[str, bytes]) -> Split:
        """Return a split's samples.

        Args:
            split: Its name, as in `files`.
            folder: The files' folder, for errors.
            contents: Content of every file.

        Raises:
            DataError: a file is damaged.
        """

    def check_files(self, root: Path) -> None:
        """Check that the files are there, if they cannot be fetched.

        Raises:
            DataError: one is missing.
        """
        names = [name for names in self.files.values() for name in names]
        check_published(root / self.folder, names, self.sources, self.published)

    def prepare(self, root: Path, progress: Progress) -> Mapping[str, Path]:
        """Fetch the files if they are missing, and write each split as an Arrow file.

        Raises:
            DataError: a file is missing and cannot be fetched, or is damaged.
        """
        folder = root / self.folder
        md5s = {name: self.md5s.get(name) for names in self.files.values() for name in names}

        def build(work_folder: Path) -> dict[str, Split | Sequence[Split]]:
            contents = obtain(
                folder, md5s, self.sources, work_folder, progress, published=self.published
            )
            read = {split: self.read(split, folder, contents) for split in self.files}
            if not self.pooled:
                return {**read}
            test = read["test"]
            return {"train": [read["train"], test], "test": Split(test.x[:0], test.y[:0])}

        variant = f"{self.variant}pooled" if self.pooled else self.variant
        return prepare_once(folder, tuple(self.files), build, progress, variant)
