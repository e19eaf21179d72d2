"""Every registered name leads to a component that writes itself by that name."""

from typing import Any

import pytest

import raysim.workloads  # noqa: F401 - registers names
from raysim.api.components import Registry
from raysim.samples.data import DATASETS, MODELS, PARTITIONS


@pytest.mark.parametrize("registry", [DATASETS, PARTITIONS, MODELS], ids=lambda found: found.kind)
def test_registered_names_lead_to_components(registry: Registry[Any]) -> None:
    names = list(registry)
    assert names
    for name in names:
        given = {n: "a" for n, f in registry.get(name).model_fields.items() if f.is_required()}
        assert registry.get(name)(**given).settings()["name"] == name
