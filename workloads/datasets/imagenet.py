"""ImageNet: 1.28 million training and 50,000 validation photographs in 1000 classes.

Source: Russakovsky et al., ImageNet Large Scale Visual Recognition Challenge, International Journal
of Computer Vision, 2015; published at https://www.image-net.org/challenges/LSVRC/2012. Read here is
the usual arrangement in class folders, `train/n01440764/*.JPEG` and `val/n01440764/*.JPEG`; the
published validation images lie in one folder, and have to be sorted into such folders first. The
validation images are the test set.

Of each image the largest square in the middle is kept. Prepared images are bytes, 3 * 224 * 224 for
each at 224 pixels. Preparing holds some parts of 64 MiB at a time; reading loads only the
requested images.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from raysim.errors import DataError
from raysim.user_input.limits import MOST
from raysim.workloads.datasets.image_files import ImageFiles, Listing, class_folders, visible


class ImageNet(ImageFiles):
    """Photographs of a thousand classes; larger than memory.

    Not downloaded: the folders `train` and `val`, each with a folder for each class, belong in
    the folder `imagenet` of the data root. Labels number the class folders in alphabetical order.
    """

    class_count: int = Field(
        default=1000,
        ge=2,
        le=MOST,
        description="number of class folders; below 1000 for a subset",
    )
    folder: ClassVar[str] = "imagenet"
    published: ClassVar[str] = "https://www.image-net.org/challenges/LSVRC/2012"
    crop: ClassVar[bool] = True

    @property
    def classes(self) -> int:
        """Number of class folders."""
        return self.class_count

    def listed(self, folder: Path) -> Mapping[str, Listing]:
        """Return the files of the class folders.

        Raises:
            DataError: there is another number of class folders, or one is missing in `val`.
        """
        train = folder / "train"
        if not train.is_dir():
            raise DataError(
                f"{train}: not there; put the class folders there, from {self.published}"
            )
        if len(classes := visible(train)) != self.class_count:
            raise DataError(
                f"{train}: holds {len(classes)} class folders; dataset.class_count is"
                f" {self.class_count}"
            )
        return {
            "train": class_folders(train, classes, self.published),
            "test": class_folders(folder / "val", classes, self.published),
        }
