"""Pretrained networks: what they compute, what of them is trained, and what is refused."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.func import functional_call, vmap

import raysim
from raysim.api.components import build_component
from raysim.errors import RaysimError
from raysim.methods.flora import merged
from raysim.numbers.adapters import adapters_of
from raysim.numbers.seeds import seeded
from raysim.training.stacked.stack_size import unsupported_reason
from raysim.workloads.models.pretrained import extra
from raysim.workloads.models.pretrained.model import HuggingFace
from raysim.workloads.models.pretrained.network import attention_mask
from tests.methods.common import assert_refused, newest_states
from tests.methods.test_adapters import METHODS as ADAPTER_METHODS
from tests.pretrained import SIZES, save_network
from tests.tasks import EQUAL, StopAfter, make_settings, make_task

ROWS = torch.tensor([[4, 5, 6, 7, -1, -1], [9, 8, 7, 6, 5, 4], [5, -1, -1, -1, -1, -1]])
CAUSAL = {"task": "causal-lm"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Networks of two layers and of width 32."""
    root = tmp_path_factory.mktemp("pretrained")
    return {kind: save_network(root / kind, kind) for kind in ("bert", "llama")}


def built(folder: Path | str, classes: int = 3, seed: int = 0, **fields: Any) -> Any:
    model = build_component(HuggingFace, {"path": str(folder), **fields}, "model.")
    with seeded(seed, "init"):
        return model.build((ROWS.shape[1],), classes)


def trained(network: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


def shared_sizes(**more: Any) -> dict[str, Any]:
    return SIZES | {"num_labels": 3, "pad_token_id": 0} | more


GROUPED = {"num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "initializer_range": 0.2}
GPT2 = {"vocab_size": 40, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "Bert": ("SequenceClassification", shared_sizes()),
    "DistilBert": ("SequenceClassification", DISTILBERT),
    "Roberta": ("SequenceClassification", shared_sizes(pad_token_id=1)),  # a head of two layers
    "XLMRoberta": ("SequenceClassification", shared_sizes()),  # whose head is defined first
    "Llama": ("SequenceClassification", shared_sizes(**GROUPED)),
    "GPT2": ("SequenceClassification", {**GPT2, "pad_token_id": 0}),
    "Qwen3": ("CausalLM", shared_sizes(**GROUPED, head_dim=8)),
    "OPT": ("CausalLM", shared_sizes(word_embed_proj_dim=32, ffn_dim=48)),  # places from masks
    "Granite": ("CausalLM", shared_sizes(**GROUPED, logits_scaling=3.0)),  # after its head
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_outputs_are_those_of_transformers_until_adapters_are_trained(name, tmp_path):
    """Of its own network with the masks that it makes itself."""
    import transformers

    kind, values = ARCHITECTURES[name]
    config = getattr(transformers, f"{name}Config")(**values)
    config.num_labels = 3
    own: Any = getattr(transformers, f"AutoModelFor{kind}")
    with seeded(0, "own"), extra.quiet():
        own = own.from_config(config, attn_implementation="eager").eval()
        own.save_pretrained(tmp_path)
    task = "causal-lm" if kind == "CausalLM" else "classification"
    network = built(tmp_path, task=task).eval()
    filler = config.pad_token_id or 0
    given = {"input_ids": torch.where(ROWS < 0, filler, ROWS), "attention_mask": (ROWS >= 0).long()}
    with torch.no_grad():
        expected, outputs = own(**given).logits, network(ROWS)
    counted = (ROWS >= 0) if kind == "CausalLM" else slice(None)
    torch.testing.assert_close(outputs[counted], expected[counted], rtol=1e-5, atol=3e-6)
    frozen = {of for of, p in network.named_parameters() if not p.requires_grad}
    beside = {of for of in frozen if f".{own.base_model_prefix}." not in of}
    assert beside <= ({"head.0.weight"} if kind == "CausalLM" else set())
    with torch.no_grad():
        for of, parameter in trained(network).items():
            parameter.add_(1.0 if "lora_B" in of else 0.0)
        assert not torch.allclose(network(ROWS)[counted], expected[counted], atol=1e-3)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("bert", {}),
        ("bert", {"prompt": 3}),
        ("llama", {}),
        ("llama", CAUSAL),
        ("llama", {**CAUSAL, "prompt": 2, "lora": {"rank": 0}}),
        ("bert", {"dtype": "bfloat16"}),
    ],
    ids=str,
)
def test_clients_are_stacked_over_one_base(folders, name, fields):
    network = built(folders[name], **fields).eval()
    generator = torch.Generator().manual_seed(1)
    stacks = {
        of: torch.stack([p.detach() + 0.1 * torch.randn(p.shape, generator=generator)] * 3)
        for of, p in trained(network).items()
    }
    for stack in stacks.values():
        stack[1:].mul_(0.5)
    x = torch.randint(0, 14, (3, 2, 6), generator=generator)
    x[:, 0, 4:] = -1

    def loss(tensors: dict[str, Tensor], rows: Tensor) -> Tensor:
        return functional_call(network, tensors, (rows,)).square().mean()

    stacked = vmap(torch.func.grad_and_value(loss))(stacks, x)
    for client in range(3):
        own = {of: stack[client] for of, stack in stacks.items()}
        gradients, value = torch.func.grad_and_value(loss)(own, x[client])
        near = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-6)
        near(stacked[1][client], value)
        if "dtype" not in fields:  # sums of a bfloat16 base differ in their last bits
            for of, gradient in gradients.items():
                near(stacked[0][of][client], gradient, rtol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_every_token_attends_to_one(causal):
    present = torch.tensor([[True, True, False], [False, False, False]])
    mask = attention_mask(present, causal=causal)
    assert mask.dim() == 4 and mask.any(-1).all()
    assert not mask[0, 0, :, 2].any()  # nor to padding


def test_rows_without_a_token_stay_finite(folders):
    x = torch.full((2, 6), -1)
    for name in folders:
        outputs = built(folders[name])(x)
        outputs.sum().backward()
        assert outputs.isfinite().all()


HEAD = 3 * 32
LORA = 2 * 2 * 8 * (32 + 32)  # query and value of two layers
COUNTS: dict[str, tuple[str, dict[str, Any], int]] = {
    "default": ("bert", {}, HEAD + 3 + LORA),
    "head alone": ("bert", {"lora": {"rank": 0}}, HEAD + 3),
    "head frozen": ("bert", {"train": None}, LORA),
    "rank 2": ("bert", {"lora": {"rank": 2}}, HEAD + 3 + LORA // 4),
    "freeze A": ("bert", {"lora": {"freeze_a": True}}, HEAD + 3 + LORA // 2),
    "one target": ("bert", {"lora": {"targets": "query"}}, HEAD + 3 + LORA // 2),
    "pattern": ("bert", {"train": "*LayerNorm*", "lora": {"rank": 0}}, HEAD + 3 + 5 * 2 * 32),
    "prompt": ("bert", {"prompt": 5, "lora": {"rank": 0}}, HEAD + 3 + 5 * 32),
    "decoder": ("llama", {}, HEAD + 2 * 8 * (32 + 32 + 32 + 16)),
    "causal": ("llama", CAUSAL, 2 * 8 * (32 + 32 + 32 + 16)),
    "tied head": ("llama", {**CAUSAL, "train": "head", "lora": {"rank": 0}}, 40 * 32),
}


@pytest.mark.parametrize("case", COUNTS)
def test_what_is_trained(folders, case):
    name, fields, expected = COUNTS[case]
    assert sum(p.numel() for p in trained(built(folders[name], **fields)).values()) == expected


OF_MINILM = [
    ({}, 74_498),
    ({"lora": {"rank": 16}}, 148_226),
    ({"lora": {"freeze_a": True}}, 37_634),
    ({"train": None}, 73_728),
    ({"lora": {"rank": 0}}, 770),
    ({"lora": {"rank": 0}, "prompt": 20}, 8_450),
    ({"lora": {"rank": 0}, "train": "*LayerNorm*"}, 10_754),
    ({"lora": {"rank": 0}, "train": "all"}, 22_713_986),
]
"""Trained values with two classes, as the page of fine-tuning has them."""


@pytest.mark.parametrize(("fields", "values"), OF_MINILM, ids=str)
def test_what_is_trained_of_minilm(fields, values):
    found = trained(built("minilm", classes=2, **fields))
    assert sum(parameter.numel() for parameter in found.values()) == values
    page = (Path(__file__).parents[3] / "docs/fine-tuning.md").read_text(encoding="utf-8")
    assert f"| {values:,} |" in page


def test_all_weights_are_trained(folders):
    network = built(folders["bert"], train="all", lora={"rank": 0})
    assert all(p.requires_grad for p in network.parameters())


def test_adapters_are_drawn_from_the_seed(folders):
    first, again, other = (trained(built(folders["bert"], seed=seed)) for seed in (0, 0, 1))
    for name, parameter in first.items():
        assert torch.equal(parameter, again[name])
        if "lora_B" in name:
            assert not parameter.any()
        elif "bias" not in name:
            assert not torch.equal(parameter, other[name])


class Tokens(raysim.Dataset):
    """Random tokens of three classes."""

    shape: ClassVar = (6,)
    classes: ClassVar = 3

    def prepare(self, root: Path, progress: Any) -> dict[str, Any]:
        x, generator = ROWS.repeat(8, 1), torch.Generator().manual_seed(0)
        y = torch.randint(0, 3, (len(x),), generator=generator)
        return {split: (x.numpy(), y.numpy()) for split in ("train", "test")}


TOKENS = {"dataset.name": f"{__name__}:Tokens", "clients": 3, "fraction": 1.0}


@pytest.mark.parametrize(
    ("fields", "drawn"),
    [
        ({}, 0),
        ({"lora.freeze_a": True}, LORA // 2),
        ({"train": None}, HEAD + 3),
        # embeddings, a layer, the pooler, two buffers of positions
        ({"random.num_hidden_layers": 1}, 3456 + 7504 + 1056 + 128),
    ],
    ids=str,
)
def test_a_run_holds_the_frozen_weights_that_no_file_has(
    folders, tmp_path, monkeypatch, fields, drawn
):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path))
    path = {"model.name": "huggingface", "model.path": str(folders["bert"])}
    given = {f"model.{key}": value for key, value in fields.items()}
    chosen = make_settings(tmp_path / "run", rounds=1, **path, **given, **TOKENS)
    raysim.run(chosen)
    kept = load_file(tmp_path / "run/base.safetensors") if drawn else {}
    assert sum(tensor.numel() for tensor in kept.values()) == drawn
    assert (tmp_path / "run/base.safetensors").exists() is bool(drawn)


def test_a_run_keeps_the_configuration_of_its_network(folders, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path))
    folder = changed(folders["bert"], tmp_path / "net")
    model = {"model.name": "huggingface", "model.path": str(folder)}
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        chosen = make_settings(out, rounds=2, checkpoint_every=1, **model, **TOKENS)
        raysim.run(chosen, listener=StopAfter(1))
    config = (folder / "config.json").read_text()
    values = {**json.loads(config), "num_attention_heads": 2}
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(RaysimError, match=r"not give the same bits: .*file of model\.path was"):
        raysim.resume(out)
    with pytest.raises(
        RaysimError, match=rf"{out}: file of model\.path was .*; restore {folder}/co"
    ):
        raysim.load(out)
    (folder / "config.json").write_text(config)
    raysim.resume(out)
    raysim.load(out)


def test_the_scale_of_adapters_is_one_unless_alpha_says_otherwise(folders):
    for fields, scale in (({"rank": 4}, 1.0), ({"rank": 4, "alpha": 32.0}, 8.0)):
        network = built(folders["bert"], lora=fields)
        scales = [m.scaling for m in network.modules() if hasattr(m, "lora_A")]
        assert scales == [{"default": scale}] * 4


def test_a_base_in_bfloat16_has_adapters_in_float32(folders):
    network = built(folders["llama"], dtype="bfloat16", **CAUSAL)
    assert {p.dtype for p in trained(network).values()} == {torch.float32}
    frozen = [p for p in network.parameters() if not p.requires_grad]
    assert {p.dtype for p in frozen} == {torch.bfloat16}
    outputs = network(ROWS)
    assert outputs.dtype == torch.float32
    near = built(folders["llama"], **CAUSAL)(ROWS)
    assert 0 < (outputs - near).abs().max() < 0.1


def test_weights_stay_mapped_from_their_file(folders):
    network = built(folders["llama"], **CAUSAL)
    frozen = [p for p in network.parameters() if not p.requires_grad]
    mapped = re.compile(r"^(\w+)-(\w+) .*llama/model\.safetensors$", re.MULTILINE)
    ranges = mapped.findall(Path("/proc/self/maps").read_text())
    for parameter in frozen:
        assert any(int(a, 16) <= parameter.data_ptr() < int(b, 16) for a, b in ranges)


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_checkpointed_activations_change_no_gradient(folders, kind, monkeypatch):
    warned: list[str] = []
    monkeypatch.setattr("transformers.utils.generic.logger.warning_once", warned.append)
    gradients = []
    for on in (False, True):
        network = built(folders[kind], checkpointing=on).train()
        assert ("checkpoints activations" in (unsupported_reason(network) or "")) is on
        with seeded(0, "dropout"):
            network(ROWS).square().sum().backward()
        gradients.append({name: p.grad for name, p in trained(network).items()})
    for name, gradient in gradients[0].items():
        assert torch.equal(gradient, gradients[1][name])
    assert not warned


def test_weights_are_drawn_from_a_configuration_alone(folders, tmp_path):
    folder = changed(folders["llama"], tmp_path / "net")
    (folder / "model.safetensors").unlink()
    sizes = {"num_hidden_layers": 1, "hidden_size": 16}
    first, again = (built(folder, random=sizes, **CAUSAL) for _ in range(2))
    other = built(folder, random=sizes, seed=1, **CAUSAL)
    assert {tuple(p.shape) for p in trained(first).values()} == {(8, 16), (32, 8), (16, 8)}
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name))
    assert not torch.equal(first.head[0].weight, other.head[0].weight)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "target": ({"lora": {"targets": "key,q_proj"}}, "model.lora.targets=q_proj: names no layer"),
    "no layer": ({"lora": {"targets": "LayerNorm"}}, "model.lora.targets=LayerNorm: names no"),
    "all and one": (
        {"lora": {"targets": "all-linear,query"}},
        "model.lora.targets=all-linear,query: all-linear stands for all layers",
    ),
    "rank": ({"lora": {"rank": 33}}, r"model.lora.rank=33: above .*query, 32 x 32; at most 32"),
    "pattern": ({"train": "*norm9*"}, r"model.train=\*norm9\*: matches no parameter .* allowed"),
    "encoder": (CAUSAL, r"is an encoder \(bert\), and model\.task=causal-lm needs"),
    "size": ({"random": {"hidden_sizes": 8}}, "model.random.hidden_sizes: .* 'hidden_size'"),
    "sizes": ({"random": {"hidden_size": 30}}, "model.random=hidden_size=30: cannot be built"),
    "too long": ({"prompt": 60}, "takes at most 64 tokens .*; inputs have 6 and 60 vectors"),
}


@pytest.mark.parametrize(
    ("kind", "fields", "told"),
    [
        ("llama", {"train": "head", **CAUSAL}, "model.embed_tokens.weight is the head by another"),
        ("no pooler", {"train": "head"}, "bert.pooler.dense.weight is new and trained, but"),
    ],
)
def test_trained_weights_of_a_base_in_bfloat16_are_refused(folders, tmp_path, kind, fields, told):
    folder = folders.get(kind) or without_pooler(tmp_path)
    with pytest.raises(RaysimError, match=f"^model.dtype=bfloat16: {told}"):
        built(folder, dtype="bfloat16", **fields)


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_do_not_suit_the_network(folders, case):
    fields, told = REFUSED[case]
    with pytest.raises(RaysimError, match=told) as error:
        built(folders["bert"], **fields)
    assert "\n" not in str(error.value)


def test_places_that_padding_takes_are_no_places(tmp_path):
    import transformers

    sizes = SIZES | {"max_position_embeddings": 14, "pad_token_id": 1}
    with extra.quiet():
        transformers.RobertaModel(transformers.RobertaConfig(**sizes)).save_pretrained(tmp_path)
    assert built(tmp_path, prompt=6)(ROWS).isfinite().all()
    with pytest.raises(RaysimError, match=r"takes at most 12 tokens .*; inputs have 6 and 7 vect"):
        built(tmp_path, prompt=7)


def test_a_vocabulary_larger_than_the_embedding_is_refused(folders):
    with pytest.raises(
        RaysimError, match="embeds 40 tokens, but the texts have a vocabulary of 41"
    ):
        built(folders["llama"], classes=41, **CAUSAL)


def changed(source: Path, target: Path, **values: Any) -> Path:
    """Copy a network with another configuration; None removes a value."""
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    config = json.loads((source / "config.json").read_text()) | values
    (target / "config.json").write_text(json.dumps(config))
    return target


CODE = {"model_type": "abacus", "auto_map": {"AutoConfig": "modeling.Net"}}
MPNET = {"model_type": "mpnet", "architectures": ["MPNetModel"]}
FILES: dict[str, tuple[dict[str, Any], str]] = {
    "quantised": ({"quantization_config": {"load_in_4bit": True}}, "its weights are quantised"),
    "code": (CODE, "needs code of its own, which is never"),
    "attention": (MPNET, "transformers has its attention without scaled_dot_product_attention"),
    "capped": ({"final_logit_softcapping": 30.0}, "caps logits .final_logit_softcapping."),
    "pooled": ({"classifier_pooling": "mean"}, "reads the attention mask outside of attention"),
    "unknown": ({"model_type": "abacus"}, "cannot be read: .*abacus"),
    "both": ({"is_encoder_decoder": True}, "is an encoder with a decoder"),
    "width": ({"intermediate_size": 50}, "its weights are not of its config.json: bert.encoder"),
    "layers": (
        {"num_hidden_layers": 3},
        "its weights lack 16 tensors, such as bert.encoder.layer.2",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_files_that_do_not_hold_the_network(folders, case, tmp_path):
    values, told = FILES[case]
    folder = changed(folders["bert"], tmp_path / "net", **values)
    with pytest.raises(RaysimError, match=f"^model.path={folder}: {told}") as error:
        built(folder)
    assert "\n" not in str(error.value)


def test_a_causal_lm_needs_the_weights_of_its_head(tmp_path):
    import transformers

    sizes = SIZES | {"num_key_value_heads": 2, "tie_word_embeddings": False}
    with extra.quiet():
        transformers.LlamaModel(transformers.LlamaConfig(**sizes)).save_pretrained(tmp_path)
    with pytest.raises(RaysimError, match=r"its weights lack 1 tensors, such as lm_head\.weight"):
        built(tmp_path, **CAUSAL)


def without_pooler(folder: Path) -> Path:
    import transformers

    network = transformers.BertModel(transformers.BertConfig(**SIZES), add_pooling_layer=False)
    with extra.quiet():
        network.save_pretrained(folder)
    return folder


def test_drawn_weights_under_adapters_are_of_no_file(tmp_path):
    model = HuggingFace(
        path=str(without_pooler(tmp_path)), lora={"targets": "all-linear"}, train=None
    )
    module = model.build((6,), 3)
    read = model.read(module)
    others = {n for n, p in module.named_parameters() if n not in read and ".lora_" not in n}
    pooler = "features.0.network.bert.pooler.dense.base_layer."
    assert others == {f"{pooler}weight", f"{pooler}bias", "head.0.weight", "head.0.bias"}


def test_adapters_in_place_of_a_network_are_refused(folders, tmp_path):
    folder = changed(folders["bert"], tmp_path / "net")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(RaysimError, match=r"holds adapters .*merge_and_unload"):
        built(folder)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("pytorch_model.bin", "its pytorch_model.bin is a pickle, .*save_pretrained"),
        ("weights.h5", "has no weights"),
    ],
)
def test_weights_that_are_no_safetensors(folders, name, told, tmp_path):
    folder = changed(folders["bert"], tmp_path / "net")
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(RaysimError, match=f"^model.path={folder}: {told}"):
        built(folder)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("weights.bin", "names weights.bin; must be a file of the folder that ends in .safet"),
        ("../net/model.safetensors", "names ../net/model.safetensors; must be a file of"),
        ("gone.safetensors", "names gone.safetensors; must be a file of the folder"),
        (None, "has no weight_map"),
    ],
)
def test_an_index_of_weights_that_names_other_files(folders, name, told, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "load", None)  # no pickle is read
    folder = changed(folders["bert"], tmp_path / "net")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    torch.save(weights, folder / "weights.bin")
    index = folder / "model.safetensors.index.json"
    sizes = {"metadata": {"total_size": 1}}

    index.write_text(
        json.dumps({**sizes, "weight_map": dict.fromkeys(weights, "part.safetensors")})
    )
    built(folder)
    wrong = {"weight_map": dict.fromkeys(weights, name)} if name else {}
    index.write_text(json.dumps({**sizes, **wrong}))
    with pytest.raises(RaysimError, match=f"^model.path={folder}: its {index.name} {told}"):
        built(folder)


def test_a_folder_whose_name_has_an_at_sign_is_no_network_of_the_hub(
    folders, tmp_path, monkeypatch
):
    changed(folders["bert"], tmp_path / "m@v2")
    monkeypatch.chdir(tmp_path)
    model = build_component(HuggingFace, {"path": "m@v2"}, "model.")
    assert model.path == str(tmp_path / "m@v2")
    built("m@v2")


def test_a_missing_extra_is_named(folders, monkeypatch):
    monkeypatch.setattr(extra, "find_spec", lambda name: None)
    with pytest.raises(
        RaysimError, match=r"needs transformers; pip install 'raysim-fl\[finetune\]'"
    ):
        built(folders["bert"])


def batch(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return random tokens, some rows shorter, and whether the first one is large."""
    x = torch.randint(4, 14, (rows, 6), generator=generator)
    x[::2, 4:] = -1
    return x, (x[:, 0] > 8).long()


def settings(out: Path, **overrides: Any) -> raysim.Settings:
    return make_settings(out, fraction=1.0, **overrides)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_federated_averaging_trains_adapters(folders, tmp_path, dtype):
    model = build_component(HuggingFace, {"path": str(folders["llama"]), "dtype": dtype}, "model.")
    generator = torch.Generator().manual_seed(0)
    clients = [batch(24, generator) for _ in range(3)]
    task = raysim.Task(partial(model.build, (6,), 2), clients)
    chosen = settings(tmp_path / "run", rounds=3, **{"local.lr": 0.5})
    rows = raysim.run(chosen, task).metrics.to_pylist()
    assert rows[-1]["train_loss"] < 0.9 * rows[0]["train_loss"]
    row = rows[-1]
    values = 2 * 32 + 2 * 8 * (32 + 32 + 32 + 16)
    assert row["bytes_up"] == row["bytes_down"] == 3 * 4 * values


def with_adapters() -> nn.Module:
    from peft import LoraConfig, get_peft_model

    network = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
    return get_peft_model(network, LoraConfig(r=2, target_modules=["0"], modules_to_save=["2"]))


BEYOND = {
    "has a variant of LoRA (such as use_dora)": ("2", "default", {"use_dora": True}),
    "has a bias in its adapter (lora_bias)": ("2", "default", {"lora_bias": True}),
    "is an embedding": ("0", "default", {}),
    "is a grouped convolution": ("1", "default", {}),
    "has an adapter named mine, not default": ("2", "mine", {}),
}


class Words(nn.Sequential):
    """Sequences of three numbers as three words, in a grouped convolution and a linear layer."""

    def __init__(self) -> None:
        super().__init__(nn.Embedding(9, 4), nn.Conv1d(4, 4, 1, groups=2), nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        words = self[0]((x.flatten(1)[:, :3].abs() * 3).long().clamp(max=8))
        return self[2](self[1](words.transpose(1, 2)).mean(2))  # type: ignore[no-any-return]


def beyond_matrices(says: str) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    target, name, given = BEYOND[says]
    return get_peft_model(Words(), LoraConfig(r=2, target_modules=[target], **given), name)


@pytest.mark.filterwarnings("ignore:LoRA adapter added to ConvNd layer with groups")
@pytest.mark.parametrize("says", BEYOND)
def test_methods_of_adapters_refuse_more_than_two_matrices(tmp_path, says):
    message = rf"method\.name=hetlora: needs adapters of two matrices, A and B; .*{re.escape(says)}"
    assert_refused(tmp_path, {"method.name": "hetlora"}, message, partial(beyond_matrices, says))


def test_any_module_with_peft_around_it_is_trained(tmp_path):
    """The base, and the copy that peft keeps of a module that is trained, do not travel."""
    task = make_task(EQUAL, with_adapters)
    result = raysim.run(settings(tmp_path / "run", rounds=4), task)
    row = result.metrics.to_pylist()[-1]
    assert row["bytes_up"] == len(EQUAL) * 4 * (2 * 12 + 16 * 2 + 16 * 3 + 3)
    assert row["test_accuracy"] > 0.6


@pytest.mark.parametrize("method", ADAPTER_METHODS)
def test_methods_of_adapters_take_peft_s(tmp_path, method):
    """Every second client has half the rank, where ranks may differ."""
    ranks = {"method.ranks": "2,1"} if method in ("flexlora", "flora", "hetlora") else {}
    given = {"method.name": method, "local.lr": 0.3, "rounds": 3, **ranks}
    result = raysim.run(settings(tmp_path / "run", **given), make_task(EQUAL, with_adapters))
    losses = result.metrics["train_loss"].to_pylist()
    assert losses[-1] < 0.95 * losses[-3]
    if method == "feddpa":
        for kept in newest_states(tmp_path / "run").values():
            assert any(tensor.any() for name, tensor in kept.items() if "lora_B.own" in name)


@pytest.mark.parametrize("kind", ["Linear", "Conv1D"])
def test_a_merged_product_is_the_adapter_s_output(tmp_path, kind):
    """In the orientation of the layer's weight, here a square one."""
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    with seeded(0, "merged"):
        layer = nn.Linear(6, 6) if kind == "Linear" else Conv1D(6, 6)
        config = LoraConfig(
            r=2, lora_alpha=3, target_modules=["0"], fan_in_fan_out=kind == "Conv1D"
        )
        network = get_peft_model(nn.Sequential(layer), config)
        (adapter,) = adapters_of(network)
        x, tensors = torch.randn(4, 6), {**network.state_dict()}
        tensors[adapter.b] = torch.randn(tensors[adapter.b].shape)
    expected = functional_call(network, tensors, (x,))
    tensors |= merged(adapter, tensors, adapter.scale * adapter.product(tensors))
    tensors[adapter.b] = torch.zeros_like(tensors[adapter.b])
    assert adapter.scale == 1.5
    torch.testing.assert_close(functional_call(network, tensors, (x,)), expected)
