"""Custom data, without code: tables, arrays, folders of images, clients of other simulators.

`raysim run mnist-fedavg dataset.name=files dataset.path=mails.csv dataset.target=spam
partition.name=natural dataset.client=domain clients=3` trains on a CSV file. The suffix of a file
tells its format: CSV, TSV, Parquet, Arrow, JSON lines, .npz, .npy and .h5. The content of a folder
tells its format: images by class, LEAF's or PFLlib's files. A file is read in batches, three times:
for the kinds of its columns, for the figures of the training set, and for the prepared file.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from pydantic import AfterValidator, Field
from torch import Tensor

from raysim.api.scoring import (
    CLASSIFICATION,
    LANGUAGE_MODEL,
    REGRESSION,
    Scoring,
    multiple_choice,
    standardised,
)
from raysim.errors import DataError
from raysim.numbers.arrays import Array
from raysim.samples.data import NOTES, Progress, Split
from raysim.samples.preparation import PREPARATION
from raysim.user_input import portable_name, user_path
from raysim.workloads.datasets.files.columns import Figures
from raysim.workloads.datasets.files.pictures import Look
from raysim.workloads.datasets.files.samples import Choice, Samples
from raysim.workloads.datasets.files.source import Source, Sources
from raysim.workloads.datasets.files.sources import Reading, find_sources
from raysim.workloads.datasets.files.unzipped import ZIP, opened, unpacked
from raysim.workloads.datasets.prepared import WORK, NeededError, prepare_once
from raysim.workloads.datasets.text import Tokeniser

REVISION = 15
"""Raised when the same files and settings give other prepared data."""
CHOICES = multiple_choice()
"""Scoring of questions with choices, by the likelihood of a token."""
UNPACKED = "unpacked"
"""Folder of an archive's content while it is read."""


def _absolute(path: str) -> str:
    return str(user_path(path, "dataset.path").absolute())


class FileDataset(Choice):
    """Base of datasets that are read from files in common formats.

    Attributes:
        folder: The dataset's folder under the data root.
    """

    image_size: int | None = Field(
        default=None, ge=1, le=4096, description="resize images to this height and width"
    )
    folder: ClassVar[str]

    @property
    def scoring(self) -> Scoring:
        """Classification, squared errors, or those of the next token."""
        if self.is_language:
            return CHOICES if self.choices else LANGUAGE_MODEL
        return CLASSIFICATION if self.task == "classification" else REGRESSION

    def scoring_of(self, targets: Array) -> Scoring:
        """Return classification, or squared errors of targets by mean and deviation of them all."""
        if self.task == "classification" or self.is_language:
            return self.scoring
        figures = Figures()
        figures.see(np.asarray(targets, np.float64).reshape(-1, 1))
        return standardised(REGRESSION, float(figures.mean[0]), float(figures.deviation[0]))

    def decode(self, x: Tensor) -> Tensor:
        """Scale bytes [B, ...] to [0, 1]; leave other numbers as they are, in torch's types."""
        if x.is_floating_point():
            return x
        return x.float() / 255 if x.element_size() == 1 else x.long()

    @property
    def own_files(self) -> bool:
        """Say that the files are the user's own: they may change."""
        return True

    def check_files(self, root: Path) -> None:
        """Check that the files are there.

        Raises:
            NeededError: the path leads nowhere, or to files of no known format.
        """
        try:
            self.sources(root)
        except DataError as error:
            raise NeededError(str(error)) from error

    def prepare(self, root: Path, progress: Progress) -> Mapping[str, Path]:
        """Read the files, and write each split as an Arrow file.

        They are prepared again if a file's size or time of change differs.

        Raises:
            DataError: a file is missing, damaged, or does not fit the settings.
        """
        sources = self.sources(root)
        try:
            tokeniser = self.tokeniser if self.text_setting else None
            folder, variant = root / self.folder, self._variant(sources, tokeniser)
        except OSError as error:
            raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error
        more = ["classes"] if self.scoring.classifies else []
        splits = ("train", "test", *more, NOTES, PREPARATION)

        def build(work_folder: Path) -> dict[str, Split | Iterator[Split]]:
            read = self.extracted(sources, work_folder)
            samples = Samples.of(read, self, progress, tokeniser, work_folder)
            built: dict[str, Split | Iterator[Split]] = {
                split: samples.parts(split) for split in ("train", "test")
            }
            if "classes" in splits:
                labels = np.array(samples.labels)
                built["classes"] = Split(labels, np.arange(len(labels)))
            built[NOTES] = samples.notes()  # written late, when all has been read
            built[PREPARATION] = samples.preparation()
            return built

        try:
            return prepare_once(folder, splits, build, progress, variant)
        except DataError as error:
            inside, archive = folder / WORK / UNPACKED, next(iter(sources.values())).path
            if str(inside) not in str(error):
                raise
            raise DataError(str(error).replace(str(inside), str(archive))) from error

    @abstractmethod
    def sources(self, root: Path) -> Sources:
        """Return the samples of each split, or of both together.

        Raises:
            DataError: there are no files, or files of no known format.
        """

    def extracted(self, sources: Sources, work_folder: Path) -> Sources:
        """Return the samples of sources, unpacked into a work folder if they are an archive.

        Raises:
            DataError: the archive is damaged, or holds no files of a known format.
        """
        return sources

    def _variant(self, sources: Sources, tokeniser: Tokeniser | None) -> str:
        """Return the name of the prepared files, of settings and the files' sizes and times."""
        fields = self.model_dump(mode="json")
        files = [
            (split, str(path), about.st_size, about.st_mtime_ns)
            for split, source in sources.items()
            for path in source.files
            for about in (path.stat(),)
        ]
        text = json.dumps([REVISION, fields, files, tokeniser and tokeniser.digest])
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        (first, *_) = sources.values()
        return f"{portable_name(first.path.stem)[:40]}-{digest}"


class Files(FileDataset):
    """Samples in your own files: CSV, Parquet, JSON lines, NumPy, images, LEAF, PFLlib, TFF.

    Classes are numbered by rank: of labels 3, 5 and 7, class 0 is 3; the prepared file `classes`
    has the labels. With `partition.name=natural` the clients are the values of `dataset.client`, or
    the clients in LEAF's, PFLlib's and TFF's formats; every other partition works, too.
    """

    path: Annotated[str, AfterValidator(_absolute)] | None = Field(
        default=None, description="file or folder; must be given"
    )
    folder: ClassVar[str] = "files"

    def sources(self, root: Path) -> Sources:
        """Return the samples of each split, or of both together; an archive is not read yet.

        Raises:
            DataError: the path does not exist, or has files in unknown formats.
        """
        if self.path is None:
            raise DataError("dataset.path: must be given: a file or folder")
        path = self._place
        try:
            if not self._is_archive:
                return find_sources(path, self._reading)
            with opened(path):
                beside = [
                    Path(setting)
                    for setting in (self.split, self.target)
                    if isinstance(setting, str)
                ]
                files = (path, *(file for file in beside if file.is_absolute() and file.is_file()))
                return {"": Source(path, (), lambda names: iter(()), files)}
        except OSError as error:
            raise DataError(f"dataset.path={path}: cannot be read: {error.strerror}") from error

    def extracted(self, sources: Sources, work_folder: Path) -> Sources:
        """Return the samples of sources, unpacked into a work folder if they are an archive.

        Raises:
            DataError: the archive is damaged, or holds no files of a known format.
        """
        if not self._is_archive:
            return sources
        return find_sources(unpacked(self._place, work_folder / UNPACKED), self._reading)

    @property
    def _place(self) -> Path:
        return Path(self.path or "")

    @property
    def _is_archive(self) -> bool:
        return self._place.suffix.lower() == ZIP and self._place.is_file()

    @property
    def _reading(self) -> Reading:
        texts = (self.text, self.prompt, self.answer, self.choices)
        return Reading(
            self.split, Look(self.image_size), self.target, frozenset(filter(None, texts))
        )
