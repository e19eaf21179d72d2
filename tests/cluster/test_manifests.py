"""The manifests are what Ray, Kubernetes and Bash take, and ask for a token.

`ray up` files are checked by Ray's own schema, the RayJob by KubeRay's published one, a trimmed
copy of which lies beside this file.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.kuberay import autoscaling_config
from ray.autoscaler._private.util import prepare_config, validate_config

from raysim.cli.app import _check_job
from raysim.cluster.pages import MANIFESTS

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"
RAY_UP = ["ray-up-on-premise.yaml", "ray-up-aws.yaml"]
RAY_JOB = "kuberay-job.yaml"
STORAGE = "kuberay-storage.yaml"
SLURM = "slurm.sh"
SCHEMA = json.loads((Path(__file__).parent / "rayjob.schema.json").read_text())


def ray_up(name: str) -> dict[str, Any]:
    return yaml.safe_load((MANIFESTS / name).read_text())


def ray_job() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((MANIFESTS / RAY_JOB).read_text())
    assert document["kind"] == "RayJob"
    return document


def test_manifests_are_listed_and_printed_as_they_stand(raysim_command):
    code, out, _ = raysim_command("list", "manifests")
    assert code == 0 and "raysim on Slurm: one Ray cluster for the job" in out
    for name in (*RAY_UP, RAY_JOB, STORAGE, SLURM):
        assert name in out
        assert raysim_command("list", "manifests", name)[1] == (MANIFESTS / name).read_text()
    code, _, err = raysim_command("list", "manifests", "slurm")
    assert (code, err) == (2, "raysim: slurm: no such manifest; did you mean 'slurm.sh'?\n")


def test_kubectl_applies_the_files_that_were_printed():
    texts = [(MANIFESTS / name).read_text() for name in (RAY_JOB, STORAGE)]
    for text in (*texts, (ROOT / "docs/clusters.md").read_text(encoding="utf-8")):
        written = re.findall(r"raysim list manifests kuberay-\S+ > (\S+)", text)
        applied = re.findall(r"kubectl apply -f (\S+)", text)
        assert applied and {*applied} == {*written} <= {"job.yaml", "storage.yaml"}


def test_the_image_is_built_from_what_is_there_by_no_root():
    """Of raysim's own Dockerfile. Not run: the build, which needs a container engine."""
    steps = [line.split() for line in DOCKERFILE.read_text(encoding="utf-8").splitlines()]
    (user,) = [words[1] for words in steps if words[:1] == ["USER"]]
    assert int(user) > 0 and steps.index(["USER", user]) > max(
        number for number, words in enumerate(steps) if words[:1] == ["RUN"]
    )
    sources = [words[1] for words in steps if words[:1] == ["COPY"] and "--from" not in words[1]]
    assert len(sources) == 2 and all((ROOT / source).exists() for source in sources)
    assert not (ROOT / ".dockerignore").exists()  # it could leave them out
    (build,) = re.findall(
        r"^#   docker build (.*)", (MANIFESTS / RAY_JOB).read_text(), re.MULTILINE
    )
    *options, folder = shlex.split(build)
    given = dict(word.split("=") for word in options if "=" in word)
    arguments = {words[1].partition("=")[0] for words in steps if words[:1] == ["ARG"]}
    assert folder == "." and given.keys() <= arguments == {"PYTHON", "TORCH_INDEX"}
    tag = options[options.index("-t") + 1]
    cluster = ray_job()["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert [each["image"] for each in group["template"]["spec"]["containers"]] == [tag]


def test_hadolint_finds_nothing_in_the_dockerfile():
    command = [str(Path(sys.executable).parent / "hadolint"), str(DOCKERFILE)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", RAY_UP)
def test_ray_takes_its_clusters(name):
    config = ray_up(name)
    validate_config(prepare_config(copy.deepcopy(config)))
    broken = prepare_config(config | {"worker_count": 3})
    with pytest.raises(jsonschema.ValidationError, match="worker_count"):
        validate_config(broken)


@pytest.mark.parametrize("name", RAY_UP)
def test_clusters_ask_for_a_token_and_keep_the_dashboard_to_themselves(name):
    config = ray_up(name)
    for kind in ("head", "worker"):
        [start] = [line for line in config[f"{kind}_start_ray_commands"] if "ray start" in line]
        assert "export" in start and "RAY_AUTH_MODE=token" in start.partition(";")[0]
        assert ("--dashboard-host=127.0.0.1" in start) == (kind == "head")
    assert "~/.ray/auth_token" in config["file_mounts"].values()
    assert "0.0.0.0" not in (MANIFESTS / name).read_text()  # noqa: S104


def test_kubernetes_takes_the_job():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(ray_job(), SCHEMA)


def test_the_job_mounts_the_claim_of_the_other_file():
    """Which is deleted by its own name alone, so that results outlive the job."""
    claim = yaml.safe_load((MANIFESTS / STORAGE).read_text())
    assert (claim["kind"], claim["spec"]["accessModes"]) == (
        "PersistentVolumeClaim",
        ["ReadWriteMany"],
    )
    cluster = ray_job()["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        volume = group["template"]["spec"]["volumes"][0]["persistentVolumeClaim"]
        assert volume == {"claimName": claim["metadata"]["name"]}


def test_the_heads_of_manifests_describe_variants_that_ray_and_kubernetes_take():
    """What is to be edited for a cluster that grows stands in the heads word for word."""
    heads = {
        name: " ".join(re.findall(r"^# (.*)", (MANIFESTS / name).read_text(), re.MULTILINE))
        for name in ("ray-up-aws.yaml", RAY_JOB)
    }
    aws = ray_up("ray-up-aws.yaml")
    assert "min_workers: 0, and engine.actors=64 behind the command" in heads["ray-up-aws.yaml"]
    aws["available_node_types"]["eight-gpus"]["min_workers"] = 0
    validate_config(prepare_config(aws))
    job = ray_job()
    edit = "enableInTreeAutoscaling: true, replicas: 0, minReplicas: 0, maxReplicas: 8, and"
    assert f"{edit} engine.actors=16 behind the command" in heads[RAY_JOB]
    cluster = job["spec"]["rayClusterSpec"]
    cluster["enableInTreeAutoscaling"] = True
    cluster["workerGroupSpecs"][0] |= {"replicas": 0, "minReplicas": 0, "maxReplicas": 8}
    jsonschema.validate(job, SCHEMA)
    _check_job(*shlex.split(job["spec"]["entrypoint"])[1:], "engine.actors=16")
    (edit,) = re.findall(r"needs rayStartParams: {resources: '(.*?)'}", heads[RAY_JOB])
    workers = cluster["workerGroupSpecs"][0] | {"labels": {"zone": "one"}}
    workers["rayStartParams"]["resources"] = edit
    resources = autoscaling_config._get_ray_resources_from_group_spec(workers, False)
    assert resources["accelerator_type:A100"] == resources["GPU"] == 1
    assert autoscaling_config._get_labels_from_group_spec(workers) == {"zone": "one"}


def test_the_object_store_of_every_pod_lies_in_its_shared_memory():
    """Beyond it Ray would put the store on the container's disk."""
    cluster = ray_job()["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (shared,) = (each["emptyDir"] for each in group["template"]["spec"]["volumes"][1:])
        store = int(group["rayStartParams"]["object-store-memory"])
        assert shared["medium"] == "Memory"
        assert int(shared["sizeLimit"].removesuffix("Gi")) * 2**30 > 1.05 * store


def test_the_head_has_the_memory_that_its_driver_needs():
    """2.5 GB of Ray, and (8 + 2 x nodes) models, of which (2 + 2 x nodes) lie in the store."""
    head = ray_job()["spec"]["rayClusterSpec"]["headGroupSpec"]
    (container,) = head["template"]["spec"]["containers"]
    model, nodes = 110e6 * 4, 8
    store = int(head["rayStartParams"]["object-store-memory"])
    assert store >= (2 + 2 * nodes) * model
    memory = int(container["resources"]["limits"]["memory"].removesuffix("Gi")) * 2**30
    assert memory >= 2.5e9 + store + 6 * model


BROKEN = {
    "misspelt": ("spec.shutdownAfterJobFinish", True),
    "mode": ("spec.rayClusterSpec.authOptions.mode", "tokens"),
    "type": ("spec.backoffLimit", "2"),
    "head": ("spec.rayClusterSpec.headGroupSpec.template.spec.container", []),
    "parameter": ("spec.rayClusterSpec.headGroupSpec.rayStartParams", {"num-cpus": 0}),
}


@pytest.mark.parametrize("case", BROKEN)
def test_kubernetes_would_not_take(case):
    path, value = BROKEN[case]
    manifest = ray_job()
    node = manifest
    *groups, last = path.split(".")
    for group in groups:
        node = node[group]
    node[last] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(manifest, SCHEMA)


def test_the_job_asks_for_a_token_and_its_command_can_run():
    spec = ray_job()["spec"]
    assert spec["rayClusterSpec"]["authOptions"] == {"mode": "token", "secretName": "raysim-token"}
    assert spec["rayClusterSpec"]["headGroupSpec"]["serviceType"] == "ClusterIP"
    program, *words = shlex.split(spec["entrypoint"])
    assert program == "raysim"
    _check_job(*words)


def test_all_manifests_name_one_ray_that_raysim_supports():
    images = re.findall(r"rayproject/ray:(\S+?)-", (MANIFESTS / "ray-up-aws.yaml").read_text())
    assert images
    (version,) = {*images, ray_job()["spec"]["rayClusterSpec"]["rayVersion"]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (least,) = (r.split(">=")[1] for r in project["dependencies"] if r.startswith("ray["))
    assert numbers(version) >= numbers(least)
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert f"\nray=={version}\n" in constraints  # which images get, or pip would replace their Ray


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_the_script_is_sound():
    script = MANIFESTS / SLURM
    subprocess.run(["bash", "-n", script], check=True)
    if not (shellcheck := shutil.which("shellcheck")):
        pytest.skip("shellcheck is not installed")
    subprocess.run([shellcheck, script], check=True)
