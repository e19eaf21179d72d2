"""Columns of text: tokens by hand, cuts, empty cells, other formats, and the tokeniser's files."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raysim
from raysim.errors import DataError, SettingsError
from raysim.federation.prepared import notes_of, prepared
from raysim.workloads.models.pretrained.model import HuggingFace
from tests.pretrained import save_tokenizer
from tests.texts import NUMBER, BagOfTokens, numbers, write_tokenizer
from tests.workloads.datasets.files import layouts
from tests.workloads.datasets.files.test_formats import dataset, read

BODIES = ["cheap pills now", "we meet at noon", "buy cheap pills", "lunch at noon", "  ", "buy now"]
SPAM = ["yes", "no", "yes", "no", "no", "yes"]
PARTS = ["train", "train", "test", "test", "train", "train"]
TABLE = {"body": BODIES, "size": [3, 4, 3, 3, 0, 2], "spam": SPAM, "part": PARTS}


@pytest.fixture
def tokenizer(tmp_path):
    return write_tokenizer(tmp_path / "tokenizer")


@pytest.fixture
def table(tmp_path):
    pq.write_table(pa.table(TABLE), tmp_path / "mails.parquet")
    return tmp_path / "mails.parquet"


def fields(folder, **changes):
    chosen = {"text": "body", "target": "spam", "split": "part", "missing": "drop"}
    return {**chosen, "tokenizer": str(folder), **changes}


def padded(text: str, width: int = 16) -> list[int]:
    ids = [1, *numbers(text), 2]
    return ids + [-1] * (width - len(ids))


def jsonl(table):
    rows = [dict(zip(TABLE, row, strict=True)) for row in zip(*TABLE.values(), strict=True)]
    path = table.with_suffix(".jsonl")
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def csv(table):
    layouts.text(table.with_suffix(".csv"), TABLE)
    return table.with_suffix(".csv")


def views(table):
    words = pq.read_table(table)
    for place, name in enumerate(words.column_names):
        if words[name].type == pa.string():
            words = words.set_column(place, name, words[name].cast(pa.string_view()))
    pq.write_table(words, table)
    return table


def arrow(table):
    path = views(table).with_suffix(".arrow")
    words = pq.read_table(table)
    assert words["body"].type == pa.string_view()
    with pa.ipc.new_file(str(path), words.schema) as writer:
        writer.write_table(words)
    return path


@pytest.mark.parametrize("form", [lambda table: table, jsonl, csv, views, arrow])
def test_tokens_are_padded_and_rows_without_text_are_left_out(table, tokenizer, form):
    found = read(form(table), table.parent / "data", **fields(tokenizer))
    assert found["train"].x.tolist() == [padded(BODIES[row]) for row in (0, 1, 5)]
    assert found["test"].x.tolist() == [padded(BODIES[row]) for row in (2, 3)]
    assert found["train"].y.tolist() == [1, 0, 1]


def test_longer_texts_are_cut_and_counted(table, tokenizer):
    chosen = dataset(table, **fields(tokenizer, length=4))
    lines = notes_of(prepared(chosen, table.parent / "data", lambda *_: None))
    assert any("4 of 5 texts of 'body' are cut, at 4 tokens" in n for n in lines)
    found = read(table, table.parent / "data", **fields(tokenizer, length=4))
    assert found["train"].x[:, :5].tolist() == [
        [1, *numbers("cheap pills"), 2, -1],
        [1, *numbers("we meet"), 2, -1],
        [1, *numbers("buy now"), 2, -1],
    ]


def test_a_text_of_many_characters_is_cut_where_the_whole_of_it_would_be(table, tokenizer):
    long = {"body": ["lunch " * 500, "we meet"] * 5, "spam": [0, 1] * 5}
    pq.write_table(pa.table(long), table)
    found = read(table, table.parent / "data", **fields(tokenizer, split=0.2, length=20))
    assert {*map(tuple, found["train"].x.tolist())} == {
        (1, *numbers("lunch " * 18), 2, *[-1] * 12),
        tuple(padded("we meet", 32)),
    }


def test_another_tokeniser_in_the_same_folder_prepares_the_data_again(table, tokenizer):
    first = read(table, table.parent / "data", **fields(tokenizer))
    write_tokenizer(tokenizer, ends=False)
    again = read(table, table.parent / "data", **fields(tokenizer))
    assert first["test"].x[0, :4].tolist() == [1, *numbers("buy cheap pills")]
    assert again["test"].x[0, :4].tolist() == [*numbers("buy cheap pills"), -1]


END = {"eos_token": "</s>"}
CHAT = "{% for m in messages %}{{ m.role }} : {{ m.content }} </s> {% endfor %}"
CHAT += "{% if add_generation_prompt %}assistant : {% endif %}"
PAIRS = {"ask": ["add 1 2", "add 1 1", "buy now"], "reply": ["3", 2, "we meet at noon"]}


def pairs(tmp_path, **changes):
    """Return the training samples of PAIRS, in order, and the lines about them."""
    layouts.text(tmp_path / "pairs.csv", {**PAIRS, "part": ["train"] * 2 + ["test"]})
    chosen = {"prompt": "ask", "answer": "reply", "split": "part", "length": 10, **changes}
    data = dataset(tmp_path / "pairs.csv", **chosen)
    lines = notes_of(prepared(data, tmp_path / "data", lambda *_: None))
    return read(tmp_path / "pairs.csv", tmp_path / "data", **chosen), lines


def row(values: list[int], filling: int) -> list[int]:
    return values + [filling] * (16 - len(values))


def test_answers_alone_count_after_a_chat_template(tmp_path):
    folder = write_tokenizer(tmp_path / "t", ends=False, chat_template=CHAT, **END)
    found, lines = pairs(tmp_path, tokenizer=str(folder))
    ids = numbers("user : add 1 2 </s> assistant : 3 </s>")
    assert found["train"].x[0].tolist() == row(ids[:-1], -1)
    assert found["train"].y[0].tolist() == row([-100] * 7 + numbers("3 </s>"), -100)
    assert found["train"].y[1].tolist() == row([-100] * 7 + numbers("2 </s>"), -100)
    ids = numbers("user : buy now </s> assistant : we meet at noon")
    assert found["test"].x[0].tolist() == row(ids[:10], -1)
    assert any("1 of 3 texts of 'reply' are cut, at 10 tokens" in line for line in lines)


def test_a_tokeniser_without_a_template_has_prompt_line_and_answer(tmp_path):
    folder = write_tokenizer(tmp_path / "t", ends=False, **END)
    found, _ = pairs(tmp_path, tokenizer=str(folder))
    assert found["train"].x[0].tolist() == row(numbers("add 1 2 3"), -1)
    assert found["train"].y[0].tolist() == row([-100, -100, *numbers("3 </s>")], -100)


def test_all_tokens_of_a_text_count_without_a_target(table, tokenizer):
    write_tokenizer(tokenizer, ends=False, **END)
    found = read(table, table.parent / "data", **fields(tokenizer, target=None, length=3))
    ids = numbers("we meet at noon")
    assert found["train"].x[:2].tolist() == [row(numbers(BODIES[0]), -1), row(ids[:3], -1)]
    assert found["train"].y[:2].tolist() == [
        row(numbers("pills now </s>"), -100),
        row(ids[1:4], -100),
    ]


def test_prompts_that_leave_no_room_are_refused_or_left_out(tmp_path):
    folder = write_tokenizer(tmp_path / "t", ends=False)
    line = (
        r"dataset\.prompt='ask': the text in row 1 of .*pairs\.csv fills dataset\.length=2, as 2 do"
    )
    with pytest.raises(DataError, match=line):
        pairs(tmp_path, tokenizer=str(folder), length=2)
    with pytest.raises(DataError, match="the training set has no samples"):
        pairs(tmp_path, tokenizer=str(folder), length=2, missing="drop")


SHORT = {
    "prompts": ({"prompt": "body", "answer": "spam", "length": 3}, "2 prompts of 'body' fill dat"),
    "texts": ({"text": "body"}, "2 texts of 'body' have fewer than two tokens, so that there is"),
}
TRAINING = ["cheap pills", "at noon we meet", None, "at noon we meet", "buy now"]


@pytest.mark.parametrize("missing", ["drop", "mean"])
@pytest.mark.parametrize("case", SHORT)
def test_texts_without_a_token_to_predict_are_told_apart(tmp_path, case, missing):
    """The test set has one of them in row 2."""
    given, line = SHORT[case]
    chosen = {**given, "missing": missing, "split": str(tmp_path / "test.json")}
    chosen |= {"tokenizer": str(write_tokenizer(tmp_path / "t", ends=False))}
    long = {"prompts": "at noon we meet", "texts": "noon"}[case]
    texts = [long if text == "at noon we meet" else text for text in TRAINING]
    for name, bodies in {"train": [*texts[:3], *texts[4:]], "test": texts[:2]}.items():
        rows = [{"body": text, "spam": "yes"} for text in bodies]
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
    prepared_by = dataset(tmp_path / "train.json", **chosen)
    lines = notes_of(prepared(prepared_by, tmp_path / "data", lambda *_: None))
    assert any(each.startswith("1 of 6 rows lack a value") for each in lines)
    (told,) = [each for each in lines if each.startswith(line)]
    assert ("dataset.length=N keeps them" in told) is (case == "prompts")
    del chosen["missing"]
    (tmp_path / "train.json").write_text(json.dumps([{"body": "buy now", "spam": "yes"}] * 2))
    with pytest.raises(DataError, match=r"the text in row 2 of .*test\.json") as error:
        read(tmp_path / "train.json", tmp_path / "data", **chosen)
    assert ("a larger length" in str(error.value)) is (case == "prompts")


def test_a_question_that_is_too_long_is_named_by_its_row(tmp_path):
    training = [{"ask": "buy now", "reply": "4", "who": "a"}] * 2
    questions = [*QUESTIONS[:2], {**QUESTIONS[0], "ask": "cheap pills at noon"}]
    with pytest.raises(DataError, match=r"the text in row 3 of .*test\.json fills .*, as 3 do"):
        asked(tmp_path, questions, training, length=3)


@pytest.mark.parametrize("prompt", ["word " + " " * 400 + "add 1 2", "x" * 400 + " add 1 2"])
def test_a_prompt_that_is_cut_by_its_characters_fills(tmp_path, prompt):
    folder = write_tokenizer(tmp_path / "t", ends=False, chat_template=CHAT, **END)
    asks = [prompt, "add 1 1", "buy now"]
    layouts.text(tmp_path / "long.csv", {**PAIRS, "ask": asks, "part": ["train"] * 2 + ["test"]})
    chosen = {"prompt": "ask", "answer": "reply", "split": "part", "length": 10}
    chosen |= {"tokenizer": str(folder)}
    with pytest.raises(DataError, match=r"row 1 of .*long\.csv fills dataset\.length=10, as 1 do"):
        read(tmp_path / "long.csv", tmp_path / "data", **chosen)
    found = read(tmp_path / "long.csv", tmp_path / "data", **chosen, missing="drop")
    assert len(found["train"].x) == 1


def test_replies_that_are_cut_by_their_characters_are_counted(tmp_path):
    folder = write_tokenizer(tmp_path / "t", ends=False, **END)
    replies = ["3 " + " " * 400 + "4", "2", "4"]
    layouts.text(tmp_path / "a.csv", {**PAIRS, "reply": replies, "part": ["train"] * 2 + ["test"]})
    chosen = {"prompt": "ask", "answer": "reply", "split": "part", "length": 10}
    data = dataset(tmp_path / "a.csv", **chosen, tokenizer=str(folder))
    lines = notes_of(prepared(data, tmp_path / "data", lambda *_: None))
    assert any("1 of 3 texts of 'reply' are cut" in line for line in lines)


def test_an_answer_that_is_no_number_is_missing(tmp_path):
    folder = write_tokenizer(tmp_path / "t", ends=False, **END)
    table = {"ask": PAIRS["ask"] * 2, "reply": [3.0, float("nan"), 2.0] * 2}
    pq.write_table(
        pa.table({**table, "part": ["train"] * 3 + ["test"] * 3}), tmp_path / "a.parquet"
    )
    chosen = {"prompt": "ask", "answer": "reply", "split": "part", "tokenizer": str(folder)}
    found = read(tmp_path / "a.parquet", tmp_path / "data", **chosen, missing="drop")
    assert [y[y >= 0].tolist() for y in found["train"].y] == [numbers("3 </s>"), numbers("2 </s>")]


AS_THEY_STAND = ("3,5", "NA", "N/A", "null", "?", "nan", " 3")
LAYOUTS = {
    "semicolons": lambda rows: "\n".join(f"{ask};{reply};{part}" for ask, reply, part in rows),
    "tabs": lambda rows: "\n".join("\t".join(row) for row in rows),
    "json": lambda rows: json.dumps([dict(zip(rows[0], row, strict=True)) for row in rows[1:]]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_prompts_and_answers_are_taken_as_they_stand(tmp_path, layout):
    folder, words = tmp_path / "t", ("[UNK]", "ask", "NA", "N", "/", "A", "null", "?", "nan")
    words += ("3", ",", ".", "5")
    save_tokenizer(folder, words)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["truncation_side"] = "left"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    rows = [("ask", "reply", "part"), *((text, text, "train") for text in AS_THEY_STAND)]
    rows += [("ask", "A A A A A 3 5 3", "test"), ("ask", "", "test")]
    path = tmp_path / ("pairs.json" if layout == "json" else "pairs.csv")
    path.write_text(LAYOUTS[layout](rows))
    chosen = {"prompt": "ask", "answer": "reply", "split": "part", "missing": "drop", "length": 5}
    found = read(path, tmp_path / "data", **chosen, tokenizer=str(folder))

    def text(numbers):
        return "".join(words[n] for n in numbers if n >= 0)

    bare = [reply.strip() for reply in AS_THEY_STAND]
    assert [text(y) for y in found["train"].y] == bare
    assert [text(x)[: len(reply)] for x, reply in zip(found["train"].x, bare, strict=True)] == bare
    assert [text(y) for y in found["test"].y] == ["AAAAA"]


QUESTIONS = [
    {"ask": "add 1 2", "reply": 1, "options": ["2", "3", "4"], "who": "a"},
    {"ask": "buy now", "reply": 0, "options": ["cheap pills", "NaN"], "who": "b"},
    {"ask": "add 2 2", "reply": 4, "options": None, "who": "b"},
]


def asked(tmp_path, questions, training, **changes):
    """Return the samples of a training file, with questions as the test set."""
    (tmp_path / "test.json").write_text(json.dumps(questions))
    (tmp_path / "train.json").write_text(json.dumps(training))
    folder = write_tokenizer(tmp_path / "t", ends=False)
    chosen = {"prompt": "ask", "answer": "reply", "choices": "options", "client": "who"}
    chosen |= {"split": str(tmp_path / "test.json"), "tokenizer": str(folder), **changes}
    return read(tmp_path / "train.json", tmp_path / "data", **chosen)


@pytest.mark.parametrize("choices", ["lists", "cells", "none to train on"])
def test_each_choice_of_a_test_question_is_a_row(tmp_path, choices):
    questions = QUESTIONS
    if choices == "cells":
        questions = [{**q, "options": " | ".join(q["options"] or []) or None} for q in questions]
    training = [{**q, "reply": str(q["reply"])} for q in questions]
    questions = questions[:2]
    if choices == "none to train on":
        training = [{"ask": q["ask"], "reply": "4", "who": "a"} for q in QUESTIONS]
    found = asked(tmp_path, questions, training)
    rows = ["add 1 2 2", "add 1 2 3", "add 1 2 4", "buy now cheap pills", "buy now NaN"]
    pairs = zip(found["test"].x, found["test"].y[:, :-2], strict=True)
    read_again = [[*x[x >= 0], y[y >= 0][-1]] for x, y in pairs]
    assert read_again == [*map(numbers, rows)]
    counted = (found["test"].y[:, :-2] >= 0).sum(1)
    assert counted.tolist() == [1, 1, 1, 2, 1]
    assert found["test"].y[:, -2:].tolist() == [[0, 0], [0, 1], [0, 0], [1, 1], [1, 0]]
    assert found["test"].columns["client"].tolist() == ["a"] * 3 + ["b"] * 2
    assert found["train"].y[:, -2:].tolist() == [[-1, 1]] * 3


WRONG_CHOICES = {
    "the number of no choice": ({"reply": 3}, "answer '3' in row 1 must be .* from 0 to 2"),
    "no number": ({"reply": "b"}, "answer 'b' in row 1 must be the number of one of 3 choices"),
    "an empty choice": ({"options": ["2", " "]}, "choices: row 1 has an empty choice"),
    "no choice": ({"options": ["3", None]}, "choices: row 1 has an empty choice"),
    "no choices": ({"options": None}, "choices='options': row 1 of .*test.json has none; each row"),
    "a cell without choices": ({"options": " "}, "='options': row 1 of .*test.json has none; each"),
    "no prompt": ({"ask": " "}, "dataset.prompt='ask': has no text: all cells are empty, .*test.j"),
    "numbers to choose from": ({"options": [1, 2, 3]}, "choices: row 1 has no list of texts"),
}


@pytest.mark.parametrize("case", WRONG_CHOICES)
def test_choices_that_are_none(tmp_path, case):
    changes, line = WRONG_CHOICES[case]
    with pytest.raises(DataError, match=line):
        asked(
            tmp_path,
            [{**QUESTIONS[0], **changes}],
            [{**QUESTIONS[0], "reply": "1"}],
            missing="drop",
        )


def test_choices_need_a_test_file_that_has_them(tmp_path):
    training = [{**QUESTIONS[0], "reply": "1"}] * 5
    with pytest.raises(DataError, match=r"choices='options': needs questions in a file of their"):
        asked(tmp_path, [], training, split=0.4)
    with pytest.raises(DataError, match=r"dataset\.choices='opts': no such column in .*test\.json"):
        asked(tmp_path, QUESTIONS[:1], training, choices="opts")


WRONG_TEMPLATES = {
    "{{ raise_exception('no system') }}": "its chat template fails: TemplateError: no system",
    "{{ messages | length }}": "does not put an answer after the text of its prompt",
}


@pytest.mark.parametrize("template", WRONG_TEMPLATES)
def test_a_chat_template_that_fails(tmp_path, template):
    folder = write_tokenizer(tmp_path / "t", ends=False, chat_template=template)
    with pytest.raises(DataError, match=WRONG_TEMPLATES[template]):
        pairs(tmp_path, tokenizer=str(folder))


REFUSED = {
    "no such column": ({"text": "bodi"}, "dataset.text='bodi': no such column"),
    "numbers": ({"text": "size"}, "dataset.text='size': holds numbers alone"),
    "empty cells": ({"missing": "refuse"}, "column 'body': 1 value is missing, in row 5"),
    "no tokeniser": ({"tokenizer": None}, "text='body': needs a tokeniser, that of a run's model"),
    "no folder": ({"tokenizer": "nowhere"}, "dataset.tokenizer=nowhere: no such folder"),
    "no answer": ({"text": None, "target": None, "prompt": "body"}, "needs dataset.answer, too"),
    "no prompt": ({"text": None, "answer": "body"}, "answer='body': needs dataset.prompt, too"),
    "numbers to predict": ({"task": "regression"}, "task=regression: does not go with"),
    "an answer that is its prompt": (
        {"text": None, "target": None, "prompt": "body", "answer": "body"},
        "dataset.answer='body': is dataset.prompt, too; must be a column for itself",
    ),
    "clients of texts": ({"client": "body"}, "dataset.client='body': is dataset.text, too"),
    "a text that is its class": ({"target": "body"}, "target='body': is dataset.text, too"),
    "other inputs": ({"features": "size"}, "text='body': is the only input"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_text_that_does_not_fit(table, tokenizer, case, monkeypatch):
    monkeypatch.chdir(table.parent)
    changes, line = REFUSED[case]
    with pytest.raises(Exception, match=line):
        read(table, table.parent / "data", **fields(tokenizer, **changes))


def test_a_column_of_empty_cells(table, tokenizer):
    pq.write_table(pa.table({"body": ["", None, " "], "spam": [0, 1, 0]}), table)
    with pytest.raises(DataError, match=r"dataset\.text='body': has no text: all cells are empty"):
        read(table, table.parent / "data", **fields(tokenizer, split=0.4))
    assert not [*table.parent.rglob("*.arrow")]


@pytest.fixture
def run_dir(table, tokenizer, monkeypatch):
    """Return the folder of a run whose model has the tokeniser."""
    monkeypatch.setenv("RAYSIM_DATA", str(table.parent / "data"))
    changes = {
        **{"dataset.name": "files", "dataset.path": str(table), "dataset.text": "body"},
        **{"dataset.target": "spam", "dataset.split": "part", "dataset.missing": "drop"},
        **{"model.name": "tests.texts:BagOfTokens", "model.path": str(tokenizer)},
        **{"clients": 1, "fraction": 1.0, "rounds": 40, "local.lr": 0.5},
        **{"target_accuracy": None, "engine.backend": "inline", "out": str(table.parent / "run")},
    }
    raysim.run(raysim.load_config("mnist-fedavg", changes))
    return table.parent / "run"


def test_new_texts_are_predicted_with_the_tokens_of_training(run_dir, table, tokenizer):
    new = pa.table({"id": [1, 2, 3], "body": ["pills", None, "at noon " * 30]})
    pq.write_table(new, table.parent / "new.parquet")
    found = raysim.predict(run_dir, table.parent / "new.parquet")
    assert found["id"].to_pylist() == ["1", "2", "3"]
    assert found["prediction"].to_pylist() == ["yes", None, "no"]
    words = raysim.load(run_dir).state_dict()
    inputs = [1, *numbers("pills"), 2]
    mean = words["words.weight"][inputs].mean(0)
    logits = words["head.weight"] @ mean + words["head.bias"]
    assert found["p_yes"][0].as_py() == pytest.approx(float(logits.softmax(0)[1]), rel=1e-5)
    write_tokenizer(tokenizer, ends=False)
    with pytest.raises(DataError, match="is another tokeniser than the run's"):
        raysim.predict(run_dir, table.parent / "new.parquet")


@pytest.mark.parametrize(
    ("given", "task", "wanted", "why"),
    [
        ({"text": "body", "target": "spam"}, "causal-lm", "classification", "target='spam'"),
        ({"prompt": "body", "answer": "spam"}, "classification", "causal-lm", "prompt='body'"),
        ({"text": "body"}, "classification", "causal-lm", "text='body' without dataset.target"),
    ],
)
def test_the_task_of_a_model_is_that_of_the_columns(table, tokenizer, given, task, wanted, why):
    data = dataset(table, **given)
    right, other = (HuggingFace(path=str(tokenizer), task=task) for task in (wanted, task))
    assert data.for_model(right).tokenizer == str(tokenizer)
    with pytest.raises(SettingsError, match=rf"{task}: .* dataset\.{why}, .* model\.task={wanted}"):
        data.for_model(other)


def test_a_drawn_network_embeds_all_tokens(table, tokenizer):
    data = dataset(table, **fields(tokenizer))
    given = {"path": str(tokenizer), "random": {"vocab_size": len(NUMBER)}}
    assert data.for_model(HuggingFace(**given)) is data
    given["random"] = {"vocab_size": 5}
    with pytest.raises(SettingsError, match=r"random\.vocab_size=5: embeds fewer .* the 21 of"):
        data.for_model(HuggingFace(**given))


def trained_on(path, listener=None, **changes):
    """Return the folder of a run on a file, of one round."""
    given = {"dataset.name": "files", "dataset.path": str(path), "dataset.split": 0.4}
    given |= {"clients": 1, "fraction": 1.0, "rounds": 1, "target_accuracy": None}
    given |= {"engine.backend": "inline", "out": str(path.parent / "run")}
    raysim.run(raysim.load_config("mnist-fedavg", {**given, **changes}), listener=listener)
    return path.parent / "run"


class Listener(raysim.Listener):
    """Keeps lines."""

    def __init__(self):
        self.lines = []

    def note(self, line):
        self.lines.append(line)


def predicted(run, table):
    """Return the rows of a table with predictions, and the lines about them."""
    pq.write_table(pa.table(table), run.parent / "new.parquet")
    listener = Listener()
    found = raysim.predict(run, run.parent / "new.parquet", listener=listener)
    return found.to_pylist(), listener.lines


def test_new_texts_may_be_longer_than_those_of_training(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    layouts.text(tmp_path / "a.csv", {"body": ["buy now", "we meet"] * 5, "kind": ["y", "n"] * 5})
    chosen = {"dataset.text": "body", "dataset.target": "kind", "dataset.length": 40}
    model = {"model.name": "tests.texts:BagOfTokens", "model.path": str(tokenizer)}
    run = trained_on(tmp_path / "a.csv", **chosen, **model)
    words = raysim.load(run).state_dict()
    found, lines = predicted(run, {"body": ["buy now " + "lunch " * 20, "buy now " * 30]})
    for row, text in zip(found, ["buy now " + "lunch " * 20, "buy now " * 19], strict=True):
        mean = words["words.weight"][[1, *numbers(text), 2]].mean(0)
        logits = words["head.weight"] @ mean + words["head.bias"]
        assert row["p_y"] == pytest.approx(float(logits.softmax(0)[1]), rel=1e-5)
    assert lines == ["1 of 2 texts of 'body' are cut, at 40 tokens, dataset.length of the run"]
    monkeypatch.setattr("tests.texts.Bag.places", 30, raising=False)
    _, lines = predicted(run, {"body": ["buy now", "buy now " * 30]})
    assert lines == ["1 of 2 texts of 'body' are cut, at 30 tokens, the most that the model takes"]


def test_a_new_prompt_keeps_its_end_or_has_no_prediction(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    folder = write_tokenizer(tmp_path / "t", ends=False, chat_template=CHAT, **END)
    layouts.text(tmp_path / "b.csv", {"ask": ["add 1 2", "add 1 1"] * 5, "reply": ["3", "2"] * 5})
    chosen = {"dataset.prompt": "ask", "dataset.answer": "reply", "dataset.length": 20}
    model = {"model.name": "tests.texts:NextToken", "model.path": str(folder)}
    run = trained_on(tmp_path / "b.csv", **chosen, **model)
    (tmp_path / "b.csv").unlink()  # the run directory has all that is needed
    asks = ["buy now " * 20, "add 1 2", "cheap pills now lunch at noon we meet buy now add 1 2"]
    found, lines = predicted(run, {"ask": asks})
    texts = [row["prediction"] for row in found]
    assert (
        texts[0] is None and texts[1] == texts[2] != ""
    )  # by the last token alone: the template's
    told = "1 texts of 'ask' have more than 20 tokens, dataset.length of the run, and have no"
    assert any(line.startswith(told) for line in lines)
    found, _ = predicted(run, {"ask": asks[:1]})
    assert [row["prediction"] for row in found] == [None]


ENDS = {
    "a mark of the template": (" lunch", {"additional_special_tokens": ["lunch"], **END}, "lunch"),
    "a mark that is a word": (" lunch", END, "lunch </s>"),
    "no mark": ("", END, "</s>"),
    "no template": (None, END, "</s>"),
    "no end at all": (" lunch", {}, "lunch"),
}


@pytest.mark.parametrize("case", ENDS)
def test_answers_are_taught_an_end_at_which_the_model_stops(tmp_path, monkeypatch, case):
    mark, config, ends = ENDS[case]
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    if mark is not None:
        answer = f"{{% if m.role == 'assistant' %}}{mark}{{% endif %}}"
        template = f"{{% for m in messages %}}{{{{ m.content }}}}{answer} {{% endfor %}}"
        config = {**config, "chat_template": template}
    folder = write_tokenizer(tmp_path / "t", ends=False, **config)
    layouts.text(tmp_path / "b.csv", {"ask": ["buy"] * 10, "reply": ["3"] * 10})
    chosen = {"prompt": "ask", "answer": "reply", "tokenizer": str(folder), "split": 0.4}
    found = read(tmp_path / "b.csv", tmp_path / "data", **chosen)
    assert [n for n in found["train"].y[0] if n >= 0] == numbers(f"3 {ends}")
    model = {"model.name": "tests.texts:NextToken", "model.path": str(folder), "rounds": 20}
    chosen = {"dataset.prompt": "ask", "dataset.answer": "reply", "local.lr": 5.0}
    listener = Listener()
    run = trained_on(tmp_path / "b.csv", listener, **chosen, **model)
    texts = [row["prediction"] for row in predicted(run, {"ask": ["buy"]})[0]]
    stops = case != "no end at all"
    assert (texts == [f"3{mark}" if "word" in case else "3"]) is stops
    assert any("'reply' have no end" in line for line in listener.lines) is not stops


def test_a_tokeniser_of_more_tokens_than_the_model_embeds(table, tokenizer):
    small = write_tokenizer(table.parent / "small")
    (small / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 20}))
    data, model = dataset(table, **fields(tokenizer)), BagOfTokens(path=str(small))
    with pytest.raises(DataError, match=r"tokenizer: has 21 tokens, but model\.path=.* embeds 20"):
        data.for_model(model)
    assert data.for_model(BagOfTokens(path=str(tokenizer))) is data
