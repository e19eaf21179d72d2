"""`raysim export --to huggingface` and `--to peft`: what transformers and peft load."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import raysim
from raysim.api.components import build_component
from raysim.errors import RaysimError
from raysim.facade.predictions import TrainedModel
from raysim.workloads.models.pretrained import extra
from raysim.workloads.models.pretrained import folders as folders_of_networks
from raysim.workloads.models.pretrained.extra import quiet
from raysim.workloads.models.pretrained.model import HuggingFace
from tests.driver import used
from tests.pretrained import SIZES, WORDS, save_network, save_tokenizer
from tests.workloads.datasets.files import layouts

ROWS = torch.tensor([[4, 5, 6, 7, 1, 8], [9, 8, 7, 6, -1, -1], [5, -1, -1, -1, -1, -1]])
TABLE = {
    "owner": [f"o{row % 3}" for row in range(48)],
    "body": [f"{'the' if row % 2 else 'a'} {'cat' if row % 3 else 'dog'}" for row in range(48)],
    "kind": ["cat" if row % 3 else "dog" for row in range(48)],
}


@dataclass(frozen=True)
class Trained:
    """A run: its base, and its settings beside those of all runs."""

    base: str = "bert"
    changes: Mapping[str, Any] = field(default_factory=dict)


ANSWERS = {"prompt": "body", "answer": "kind"}
CASES = {
    "adapters": Trained(),
    "adapters and norms": Trained("bert", {"model.train": "*LayerNorm*"}),
    "alpha": Trained("bert", {"model.lora.alpha": 4, "model.lora.targets": "all-linear"}),
    "a decoder that classifies": Trained("llama", {"model.lora.rank": 2}),
    "a drawn head": Trained("bert", {"model.train": None}),
    "a new pooler": Trained("no pooler"),
    "answers": Trained("llama", ANSWERS),
    "answers, a tied head": Trained("llama", {**ANSWERS, "model.train": "head"}),
    "a base in bfloat16": Trained("llama", {**ANSWERS, "model.dtype": "bfloat16"}),
    "ranks": Trained("bert", {"method.name": "flexlora", "method.ranks": "1,4,8"}),
    "a head": Trained("bert", {"model.lora.rank": 0}),
    "all": Trained("llama", {**ANSWERS, "model.lora.rank": 0, "model.train": "all"}),
    "drawn weights": Trained("bert", {"model.random.num_hidden_layers": 1}),
    "a moved base": Trained("bert", {"method.name": "flora"}),
    "a moved base and adapters": Trained("llama", {**ANSWERS, "method.name": "fedex_lora"}),
}
NO_ADAPTERS = {
    "a head": "model.lora.rank=0",
    "all": "model.lora.rank=0",
    "drawn weights": "model.random: the base's drawn weights are in no file",
    "a moved base": "bert.encoder.layer.0.attention.self.query",
    "a moved base and adapters": "model.layers.0.self_attn.q_proj",
}
"""Cases that have no folder for peft, with what the error names."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("networks")
    found = {kind: save_network(root / kind, kind) for kind in ("bert", "llama")}
    from transformers import BertConfig, BertModel

    found["no pooler"] = root / "no pooler"
    with quiet():
        BertModel(BertConfig(**SIZES), add_pooling_layer=False).save_pretrained(root / "no pooler")
    save_tokenizer(root / "no pooler")
    return found


@pytest.fixture
def trained(folders, tmp_path, monkeypatch, capsys):
    """Return what trains a case as the run `run` of this folder, and the command line there."""
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    layouts.text(tmp_path / "pets.csv", TABLE)
    command = used.command_in(tmp_path, monkeypatch, capsys)

    def train(of: Trained) -> used.Command:
        changes = {
            **{"client": "owner", "out": "run", "rounds": 2, "clients": 3, "fraction": 1.0},
            **{"local.lr": 0.05, "evaluation.every": 2, "model.path": str(folders[of.base])},
            **({} if "answer" in of.changes else {"target": "kind", "text": "body"}),
            **of.changes,
        }
        raysim.run(raysim.load_config("pets.csv", changes))
        return command

    return train


def logits(network: Any) -> Tensor:
    """Return what a network of transformers computes of the rows, where there are tokens."""
    with torch.no_grad():
        given = {"input_ids": ROWS.clamp(min=0), "attention_mask": (ROWS >= 0).long()}
        return counted(network.eval()(**given).logits)


def counted(outputs: Tensor) -> Tensor:
    return outputs[ROWS >= 0] if outputs.dim() == 3 else outputs


def expected() -> Tensor:
    with torch.no_grad():
        return counted(raysim.load("run").float()(ROWS))


def near(found: Tensor, wanted: Tensor, most: float = 1e-5) -> bool:
    return torch.allclose(found, wanted, rtol=most, atol=most)


def read(folder: str | Path, of: Trained, dtype: str = "float32") -> Any:
    """Return a folder's network, as transformers reads it in a type, in float32."""
    import transformers

    kind, sizes = "SequenceClassification", {"num_labels": 2}
    if "answer" in of.changes:
        kind, sizes = "CausalLM", {}
    with quiet():
        auto = getattr(transformers, f"AutoModelFor{kind}")
        return auto.from_pretrained(folder, dtype=dtype, **sizes).float()


def with_adapters(base: Any, folder: str) -> Any:
    from peft import PeftModel

    with quiet():
        return PeftModel.from_pretrained(base, folder)


def as_a_model(folder: str, of: Trained) -> Any:
    """Return a folder's network as `model.path` reads it."""
    causal = {"task": "causal-lm"} if "answer" in of.changes else {}
    path = {"path": str(Path(folder).absolute())}
    model = build_component(HuggingFace, {**path, **causal}, "model.")
    return model.build((ROWS.shape[1],), 40 if causal else 2).eval().requires_grad_(False)


@pytest.mark.parametrize("name", CASES)
def test_transformers_and_peft_compute_what_the_run_has_learnt(folders, trained, name):
    of = CASES[name]
    command = trained(of)
    base = read(folders[of.base], of, of.changes.get("model.dtype", "float32"))
    assert not near(logits(base), expected(), 1e-3)
    assert command("export", "run", "--to", "huggingface")[:2] == (0, "model: model_huggingface\n")
    assert near(logits(read("model_huggingface", of)), expected())
    assert near(counted(as_a_model("model_huggingface", of)(ROWS)), expected())
    code, _, said = command("export", "run", "--to", "peft", "-o", "adapters")
    if name in NO_ADAPTERS:
        assert code == 2 and NO_ADAPTERS[name] in said and said.count("\n") == 1, said
        assert not Path("adapters").exists()
        return
    assert code == 0, said
    assert near(logits(with_adapters(base, "adapters")), expected())


def stated(path: str) -> Mapping[str, str]:
    """Return a file's metadata: the digest of the base that its tensors belong to."""
    with safe_open(path, "pt") as file:
        return file.metadata() or {}


def test_the_model_of_a_client(folders, trained):
    of = Trained("bert", {"method.name": "feddpa"})
    command = trained(of)
    with torch.no_grad():
        own = TrainedModel.of(Path("run"), "o1").network(ROWS)
    assert not near(own, expected(), 1e-3)
    assert command("export", "run", "--client", "o1", "-o", "own.safetensors")[0] == 0
    assert stated("own.safetensors") == stated("run/model.safetensors") != {}
    for to in ("huggingface", "peft"):
        assert command("export", "run", "--to", to, "--client", "o1", "-o", to)[0] == 0
    assert near(logits(read("huggingface", of)), own)
    assert near(logits(with_adapters(read(folders["bert"], of), "peft")), own)


def _other(folder: Path) -> None:
    save_network(folder, "bert", initializer_range=0.1)


BASES = {
    "model.path=network: no such folder": shutil.rmtree,
    "network: has no weights (model.safetensors)": lambda f: (f / "model.safetensors").unlink(),
    "frozen tensors are not those of the run": _other,
}


@pytest.mark.parametrize("message", BASES)
def test_a_base_that_is_gone_or_another_is_one_line(folders, trained, tmp_path, message):
    base = tmp_path / "network"
    shutil.copytree(folders["bert"], base)
    command = trained(Trained("bert", {"model.path": str(base)}))
    BASES[message](base)
    for words in (("predict", "run", "pets.csv"), ("export", "run", "--to", "peft")):
        code, _, said = command(*words)
        assert code == 2 and message in said and said.count("\n") == 1, said
    with pytest.raises(RaysimError, match=re.escape(message)):
        raysim.load("run")


def test_the_folders_say_what_they_are(folders, trained):
    from transformers import AutoTokenizer

    command = trained(CASES["adapters"])
    for to in ("huggingface", "peft"):
        assert command("export", "run", "--to", to)[0] == 0
    config = json.loads(Path("model_huggingface/config.json").read_text())
    assert config["id2label"] == {"0": "cat", "1": "dog"}
    with quiet():
        tokenizer = AutoTokenizer.from_pretrained("model_huggingface")
    assert tokenizer("the cat")["input_ids"] == [4, 6]
    card = Path("model_huggingface/README.md").read_text()
    assert 'AutoModelForSequenceClassification.from_pretrained(".")' in card
    config = json.loads(Path("model_peft/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "bert"  # no folder of the author's machine
    assert (config["r"], config["modules_to_save"]) == (8, ["classifier"])
    how = 'dtype="float32", num_labels=2, ignore_mismatched_sizes=True'
    card = Path("model_peft/README.md").read_text()
    assert f"AutoModelForSequenceClassification.from_pretrained(base, {how})" in card
    size = Path("model_peft/adapter_model.safetensors").stat().st_size
    assert size < 0.3 * Path("model_huggingface/model.safetensors").stat().st_size


CHAT = "{% for m in messages %}{{ m.content }} sat {% endfor %}"
WAYS = {
    "chat": (ANSWERS, CHAT, "tokenizer.apply_chat_template(chat", ["sat"]),
    "prompt": (ANSWERS, None, '(tokenizer.bos_token or "") + "A prompt', []),
    "text": ({"text": "body"}, None, 'tokenizer("A text"', []),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("to", ["huggingface", "peft"])
def test_the_lines_of_a_card_ask_as_in_training(folders, trained, monkeypatch, capsys, way, to):
    """The program of the card runs, and the network is given what it was trained on."""
    changes, template, called, ends = WAYS[way]
    base = shutil.copytree(folders["llama"], Path("networks/base"))
    if template:
        (base / "chat_template.jinja").write_text(template)
    given = {**changes, "model.task": "causal-lm", "model.path": str(base), "target": None}
    command = trained(Trained("llama", given))
    assert command("export", "run", "--to", to, "-o", "out")[0] == 0
    card = Path("out/README.md").read_text()
    assert "The pretrained network is base (model.path)." in card and str(base.parent) not in card
    assert called in card and ('"..."  # folder of the pretrained' in card) is (to == "peft")
    base = base.absolute()
    monkeypatch.chdir("out")
    found = used_as_the_card_says(base)
    assert found["tokenizer"].convert_ids_to_tokens(found["ids"][0])[2:] == ends
    assert found["tokens"].shape[1] > found["ids"].shape[1]
    assert capsys.readouterr().out.strip()


def used_as_the_card_says(base: Path, text: str = '"A text."') -> dict[str, Any]:
    """Run the program of a card in this folder; return its variables."""
    program = Path("README.md").read_text().partition("```python\n")[2].partition("```")[0]
    program = re.sub(r'"\.\.\."  # folder of .*', repr(str(base)), program)
    Path("use.py").write_text(program.replace('"A text."', text))
    with quiet():
        return runpy.run_path("use.py")


def trained_without_padding(trained, end: str | None) -> tuple[used.Command, Path]:
    """Train on a decoder in bfloat16 with another classifier; return the command line, and it."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    sizes = SIZES | {"pad_token_id": None, "num_labels": 5}
    base = Path("base").absolute()
    with quiet():
        LlamaForSequenceClassification(LlamaConfig(**sizes)).bfloat16().save_pretrained(base)
    save_tokenizer(base, ("!", *WORDS[1:]), end=end)
    return trained(Trained("llama", {"model.path": str(base), "model.lora.rank": 2})), base


@pytest.mark.parametrize("to", ["huggingface", "peft"])
def test_a_decoder_without_padding_classifies_as_in_training(trained, monkeypatch, to):
    """Texts end in the first token."""
    command, base = trained_without_padding(trained, end="[SEP]")
    texts = ["the cat sat !", "a", "dog ! !", "ran"]
    layouts.text(Path("new.csv"), {"body": texts})
    expected = raysim.predict("run", "new.csv")["p_cat"].to_pylist()
    assert command("export", "run", "--to", to, "-o", "out")[0] == 0
    monkeypatch.chdir("out")
    found = used_as_the_card_says(base, f"{texts}, padding=True")["outputs"]
    assert found.softmax(1)[:, 0].tolist() == pytest.approx(expected, rel=1e-4)


def test_a_decoder_that_classifies_needs_a_token_that_ends_no_text(trained):
    command, _ = trained_without_padding(trained, end=None)
    code, _, said = command("export", "run", "--to", "peft", "-o", "out")
    assert code == 2 and "needs a token for padding that ends no text, and the tokeniser" in said
    assert said.count("\n") == 1 and not Path("out").exists()


HEADERS = {
    "minilm": ("apache-2.0", "sentence-transformers/all-MiniLM-L6-v2", "fetch minilm` prints"),
    f"org/net@{'a' * 40}": ("unknown", "org/net", f'(base, revision="{"a" * 40}", dtype="float32"'),
}


@pytest.mark.parametrize("path", HEADERS)
def test_a_card_states_a_known_base(folders, trained, monkeypatch, path):
    monkeypatch.setattr(folders_of_networks, "fetched", lambda name: folders["bert"])
    monkeypatch.setattr(folders_of_networks, "_of_hub", lambda *given: folders["bert"])
    command = trained(Trained("bert", {"model.path": path}))
    assert command("export", "run", "--to", "peft", "-o", "out")[0] == 0
    licence, base, lines = HEADERS[path]
    card = Path("out/README.md").read_text()
    assert card.startswith(f"---\nlicense: {licence}\nbase_model: {base}\n") and lines in card
    assert f"The pretrained network is {path} (model.path)" in card
    config = json.loads(Path("out/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == path.partition("@")[0]


REFUSED = {
    "has no place for the vectors of a prompt (model.prompt=3)": {"model.prompt": 3},
    "has no place for what method.name=fedrod adds to the network": {"method.name": "fedrod"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_has_no_place_in_such_a_folder_is_one_line(trained, message):
    command = trained(Trained("bert", REFUSED[message]))
    for to in ("huggingface", "peft"):
        code, _, said = command("export", "run", "--to", to)
        assert code == 2 and message in said and said.count("\n") == 1, said
        assert not Path(f"model_{to}").exists()


def test_the_extra_is_named_where_it_is_missing(trained, monkeypatch):
    command = trained(CASES["adapters"])
    monkeypatch.setattr(extra, "PACKAGES", ("transformers", "no_such_package"))
    code, _, said = command("export", "run", "--to", "peft")
    assert code == 2 and "--to=peft: needs no_such_package; pip install 'raysim-fl[fin" in said
