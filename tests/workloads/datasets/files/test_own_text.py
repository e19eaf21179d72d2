"""Own text as the start of a run: presets, adapters of tiny networks, answers and predictions."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

import raysim
from raysim.facade.predictions import TrainedModel
from raysim.results.runs import read_run
from raysim.workloads.datasets.labels import training_labels
from raysim.workloads.models.pretrained import extra
from tests.cli.test_app import raysim_command  # noqa: F401 - a fixture
from tests.pretrained import WORDS, save_network, save_tokenizer
from tests.workloads.datasets.files import layouts

COUNT = 80
ANIMAL = ["cat" if row % 3 else "dog" for row in range(COUNT)]
DOES = {"cat": "sat", "dog": "ran"}
TABLE = {
    "body": [f"{'the' if row % 2 else 'a'} {animal}" for row, animal in enumerate(ANIMAL)],
    "kind": ANIMAL,
    "does": [DOES[animal] for animal in ANIMAL],
}
FEW = {"clients": 2, "fraction": 1.0, "rounds": 12, "evaluation.every": 12, "local.lr": 0.02}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("networks")
    return {kind: str(save_network(root / kind, kind)) for kind in ("bert", "llama")}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    layouts.text(tmp_path / "pets.csv", TABLE)
    return tmp_path


STARTS = {
    "a class of a text": ({"target": "kind", "text": "body"}, "bert", "classification"),
    "answers": ({"prompt": "body", "answer": "does"}, "llama", "causal-lm"),
    "the next token": ({"dataset.text": "body"}, "llama", "causal-lm"),
}


@pytest.mark.parametrize("case", STARTS)
def test_columns_of_text_choose_the_preset(folders, case):
    changes, kind, task = STARTS[case]
    settings = raysim.load_config("pets.csv", {**changes, "model.path": folders[kind]})
    assert (settings.model.title, settings.model.task) == ("huggingface", task)
    assert settings.data.tokenizer == folders[kind]
    assert settings.dataset.tokenizer is None


def test_without_the_libraries_nothing_is_fetched(place, monkeypatch):
    monkeypatch.setattr(extra, "find_spec", lambda name: None)
    with pytest.raises(raysim.SettingsError, match=r"pip install 'raysim-fl\[finetune\]'"):
        raysim.load_config("pets.csv", {"target": "kind", "text": "body"})
    assert not (place / "data").exists()


def test_adapters_learn_classes_of_texts_and_predict_new_ones(folders, place):
    changes = {"target": "kind", "text": "body", "model.path": folders["bert"], "out": "run"}
    result = raysim.run(raysim.load_config("pets.csv", {**changes, **FEW}))
    assert result.summary["final_accuracy"] == 1
    (place / "new.csv").write_text("body\na dog\nthe cat\n")
    assert raysim.predict("run", "new.csv")["prediction"].to_pylist() == ["dog", "cat"]
    labels = training_labels(read_run(place / "run"))  # for a report
    assert np.bincount(labels).sum() == 64


def test_a_language_model_learns_answers(place, raysim_command):  # noqa: F811
    network = save_network(place / "net", "llama")
    save_tokenizer(network, end="[SEP]")
    changes = {"prompt": "body", "answer": "does", "model.path": str(network), "out": "run"}
    settings = raysim.load_config("pets.csv", {**changes, **FEW, "evaluation.every": 6})
    assert raysim.run(settings).summary["final_exact_match"] == 1
    table = pq.read_table("run/analysis/answers.parquet").to_pylist()
    last = {row["prompt"]: (row["wanted"], row["answer"]) for row in table[-4:]}
    assert last == {f"{a} {pet}": (DOES[pet],) * 2 for a in ("a", "the") for pet in DOES}
    (place / "new.csv").write_text("id,body\n7,a dog\n8,the cat\n")
    found = raysim.predict("run", "new.csv")
    assert found["id"].to_pylist() == ["7", "8"]
    assert found["prediction"].to_pylist() == ["ran", "sat"]
    model, forwards = TrainedModel.of(place / "run", None), list[object]()
    model.network.register_forward_hook(lambda *called: forwards.append(called))
    assert len([*model.predictions(place / "new.csv")]) == 1
    assert len(forwards) == 2  # the word, and its end
    raysim_command("report", "run")
    page = (place / "report.html").read_text()
    assert "Answers to prompts" in page and "round 12" in page
    assert "No heat map of the samples: their targets are not classes." in page
    for each in ("perplexity", "exact match [%]"):
        assert (
            f">final {each}<" in page and f">test {each}<" in page
        )  # in the table, and at an axis


def test_answers_end_where_a_network_has_no_more_places(place):
    import transformers

    sizes = {"vocab_size": 40, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 20}
    network = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    network.transformer.ln_f.weight.data.zero_()
    network.transformer.ln_f.bias.data = 9 * network.lm_head.weight.data[WORDS.index("sat")]
    with extra.quiet():
        network.save_pretrained(place / "net")
    save_tokenizer(place / "net")
    changes = {"prompt": "body", "answer": "does", "model.path": str(place / "net"), "out": "run"}
    short = {**FEW, "rounds": 1, "evaluation.every": 1}
    raysim.run(raysim.load_config("pets.csv", {**changes, **short}))
    answers = pq.read_table("run/analysis/answers.parquet")["answer"].to_pylist()
    (place / "new.csv").write_text(f"body\n{'a dog ' * 10}\n{'a dog ' * 11}\na dog\n")
    found = raysim.predict("run", "new.csv")["prediction"].to_pylist()
    assert found == ["sat", None, " ".join(["sat"] * 19)]  # a place for each token but the last
    assert {*answers} == {found[2]}


def test_choices_of_a_test_file_are_made_by_likelihood(folders, place):
    """Of two animals the model knows what they do; of the third question the wrong is marked."""
    rows = [("a cat", "sat|ran", 0), ("the dog", "sat|ran", 1), ("a dog", "sat|ran", 0)]
    table = dict(zip(("body", "options", "does"), zip(*rows, strict=True), strict=True))
    layouts.text(place / "quiz.csv", table)
    changes = {"prompt": "body", "answer": "does", "choices": "options", "split": "quiz.csv"}
    settings = raysim.load_config("pets.csv", {**changes, "model.path": folders["llama"], **FEW})
    result = raysim.run(settings.override({"out": "run"}))
    assert result.summary["final_choice_accuracy"] == pytest.approx(2 / 3)
    assert result.summary["final_exact_match"] == pytest.approx(2 / 3)


def test_the_page_of_columns_shows_text_and_the_command(place, raysim_command):  # noqa: F811
    layouts.text(
        place / "mails.csv", {"body": [f"{n} cats sat" for n in range(40)], "kind": [1] * 40}
    )
    _, shown, _ = raysim_command("data", "show", "mails.csv")
    assert "text, 40 different: '0 cats sat', ..." in shown
    assert "target=COLUMN text=body" in shown
