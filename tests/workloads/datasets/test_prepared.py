"""Prepared data that another user has, in a folder that all share."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from raysim.errors import DataError
from raysim.samples.data import Split
from raysim.workloads.datasets.prepared import prepare_once

NOBODY = 65534


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="shared"))
    folder.chmod(0o755)
    yield folder
    (folder / "data/prepared").chmod(0o755)
    shutil.rmtree(folder)


@contextmanager
def as_another_user() -> Iterator[None]:
    """Give up the rights of root, if this process has them."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


def prepare(folder: Path, build: Callable[[Path], dict[str, Split]]) -> dict[str, Path]:
    return prepare_once(folder, ("train",), build, lambda *_: None)


@pytest.mark.parametrize("closed", ["prepared/train.arrow", "prepared/train.sha256", "prepared"])
def test_prepared_data_of_another_user_is_named(shared, closed):
    split = Split(np.zeros((3, 2), "f4"), np.zeros(3, "i8"))
    folder = shared / "data"
    paths = prepare(folder, lambda _: {"train": split})
    assert prepare(folder, pytest.fail) == paths
    (folder / closed).chmod(0)
    line = rf"^{folder}/prepared.*: prepared data cannot be read: Permission denied; .*RAYSIM_DATA"
    with as_another_user(), pytest.raises(DataError, match=line):
        prepare(folder, pytest.fail)
