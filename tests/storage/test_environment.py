"""Environments: what is recorded of a process, and what is said where nodes differ."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import raysim
from raysim.execution.base import InlineExecutor
from raysim.storage.environment import by_environment, environment, gpu_names, node_differences
from tests.tasks import Notes, make_settings, make_task

AVX2 = {"torch": "2.9.0", "cpu_capability": "AVX2", "processor": "EPYC", "threads": 1}
AVX512 = AVX2 | {"cpu_capability": "AVX512", "processor": "Xeon"}


def actor(host, values):
    return {"host": host, "device": "cpu", "environment": values}


def test_an_environment_names_builds_kernels_and_processor():
    found = environment(torch.device("cpu"))
    assert json.loads(json.dumps(found)) == found
    assert found["torch"] == torch.__version__ and found["numpy"] == np.__version__
    assert found["torch_commit"] == torch.version.git_version
    assert found["cpu_capability"] in {"DEFAULT", "AVX2", "AVX512", "SVE256", "ZVECTOR"}
    assert found["threads"] == torch.get_num_threads()
    assert found["torch_blas"] and found["numpy_blas"] and found["processor"]
    text = torch.__config__.show()
    assert found["torch_libraries"] and all(line in text for line in found["torch_libraries"])
    assert not any("Build settings" in line for line in found["torch_libraries"])
    assert found["gpu"] is None


@pytest.mark.parametrize(
    ("cuda", "hip", "said"), [("13.2", None, "13.2"), (None, "6.4", "ROCm 6.4")]
)
def test_a_gpus_maker_is_recorded(monkeypatch, cuda, hip, said):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU")
    assert environment(torch.device("cuda", 0))["cuda"] == said


def test_variables_that_choose_kernels_are_recorded(monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    monkeypatch.setenv("UNRELATED", "x")
    assert environment(torch.device("cpu"))["variables"]["MKL_CBWR"] == "COMPATIBLE"
    assert "UNRELATED" not in environment(torch.device("cpu"))["variables"]


@pytest.mark.parametrize(("usable", "names"), [(True, ["GPU 0", "GPU 1"]), (False, [])])
def test_gpus_are_named_where_torch_can_use_them(monkeypatch, usable, names):
    """The driver's library counts GPUs, whatever torch can do with them."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
    monkeypatch.setattr(torch.cuda, "get_device_name", "GPU {}".format)
    assert gpu_names() == names


def test_nodes_are_grouped_by_environment_the_most_common_first():
    actors = [actor("c", AVX512), actor("b", AVX2), actor("a", AVX2), actor("b", AVX2)]
    assert by_environment(actors) == [
        {"nodes": ["a", "b"], **AVX2},
        {"nodes": ["c"], **AVX512},
    ]


@pytest.mark.parametrize("hosts", [[], ["a"], ["a", "a", "b"]])
def test_nothing_is_said_where_all_agree(hosts):
    assert node_differences([actor(host, dict(AVX2)) for host in hosts]) is None


def test_nodes_that_differ_are_named_with_their_difference():
    older = AVX2 | {"torch": "2.8.0"}
    actors = [actor(h, AVX2) for h in "ab"] + [actor("c", AVX512), actor("d", older)]
    text = node_differences(actors)
    assert text is not None and len(text.splitlines()) == 1
    assert text.endswith(
        "c: cpu_capability=AVX512 (most: AVX2), processor=Xeon (most: EPYC);"
        " d: torch=2.8.0 (most: 2.9.0)"
    )


def test_of_many_nodes_three_are_named():
    actors = [actor(f"n{i}", AVX512) for i in range(5)] + [actor(f"m{i}", AVX2) for i in range(6)]
    assert " n0, n1, n2 and 2 more: cpu_capability=AVX512" in str(node_differences(actors))


def test_a_run_records_its_environment_and_says_nothing_on_one_node(tmp_path):
    notes = Notes()
    raysim.run(make_settings(tmp_path, rounds=1), make_task((20,) * 4), notes)
    found = json.loads((tmp_path / "environment.json").read_text())
    (node,) = found["environments"]
    assert len(node.pop("nodes")) == 1
    assert node == found["driver"] | {"threads": 1}
    assert found["actors"] == [{"device": "cpu"}]
    assert notes.notes == []


def test_a_run_says_once_which_nodes_differ(tmp_path, monkeypatch):
    actors = [actor("a", AVX2), actor("b", AVX512)]

    def describe(self):
        actors.insert(0, actor("a", AVX2))  # another one joins every round
        return {"backend": "ray", "actors": [*actors]}

    monkeypatch.setattr(InlineExecutor, "describe", describe)
    notes = Notes()
    raysim.run(make_settings(tmp_path, rounds=3), make_task((20,) * 4), notes)
    (text,) = notes.notes
    assert "b: cpu_capability=AVX512 (most: AVX2)" in text
    found = json.loads((tmp_path / "environment.json").read_text())
    assert [node["nodes"] for node in found["environments"]] == [["a"], ["b"]]
