"""The run without analyses, and the same with all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import raysim
from tests.driver.analyses.common import EVERYTHING, SIZES, settings
from tests.tasks import make_settings, make_task


@pytest.fixture(scope="package")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a run without analyses and the same with all of them."""
    folder = tmp_path_factory.mktemp("runs")
    plain, analysed = folder / "plain", folder / "analysed"
    task = make_task(SIZES)
    raysim.run(make_settings(plain, **EVERYTHING, fraction=0.5), task)
    raysim.run(settings(analysed, plain, fraction=0.5), task)
    return plain, analysed
