"""Mails: a small archive by hand, and the real ones once."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from raysim.errors import DataError
from raysim.federation.prepared import open_prepared, prepared
from raysim.workloads.datasets.fetch import data_root
from raysim.workloads.datasets.spam import SpamAssassin, mails
from tests.texts import numbers, write_tokenizer

MAILS = {
    "easy-ham-1/1.a.txt": "From: Ann <ann@mail.Example.org>\nSubject: Lunch\n\nlunch, noon\n",
    "spam-1/1.b.txt": "X: 1\nFrom: b@win.com\nSubject: WIN\n\nwin money\nFrom: not@this.one\n",
    "spam-2/1.c.txt": "no head",
    "hard-ham-1/1.d.json": "{}",
}


def ignore(what: str, done: int, total: int) -> None:
    pass


def archive(content: dict[str, str]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as opened:
        for name, text in content.items():
            member = tarfile.TarInfo(f"package/data/{name}")
            member.size = len(text)
            opened.addfile(member, io.BytesIO(text.encode()))
    return file.getvalue()


def test_words_and_domains_by_hand():
    found = [*mails(archive(MAILS), Path("a.tgz"))]
    assert [spam for spam, _ in found] == [False, True, True]
    splits = SpamAssassin(features=3)._words(found * 2)  # six mails, one of them to test on
    assert len(splits["train"].y) == 5 and len(splits["test"].y) == 1
    words = splits["words"].x.tolist()
    both = np.concatenate([splits[name].columns["domain"] for name in ("train", "test")])
    assert sorted(both.tolist()) == ["", "", "example.org", "example.org", "win.com", "win.com"]
    for name in ("train", "test"):
        for x, domain in zip(splits[name].x, splits[name].columns["domain"], strict=True):
            own = {"example.org": {"lunch", "noon"}, "win.com": {"win", "money", "from", "not"}}
            mine = {*own.get(domain, set()), *({"this", "one"} if domain == "win.com" else ())}
            assert {words[place] for place in np.flatnonzero(x)} == mine & {*words}


def test_mails_as_text_have_the_tokens_of_subject_and_body(tmp_path):
    folder = write_tokenizer(tmp_path)
    dataset = SpamAssassin(text=True, tokenizer=str(folder), length=7)
    contents = [(True, "From: b@win.com\nSubject: cheap pills\n\nbuy now\nnow now now")] * 5
    splits = dataset._tokens(contents, dataset.tokeniser)
    expected = [1, *numbers("cheap pills buy now now"), 2]
    assert splits["train"].x.tolist() == [expected + [-1] * 9] * 4
    assert splits["test"].columns["domain"].tolist() == ["win.com"]
    assert "5 of 5 texts of 'text' are cut, at 7 tokens" in splits["notes"].x[0]


def test_an_archive_without_mails_is_refused():
    with pytest.raises(DataError, match=r"a\.tgz: holds no mails"):
        [*mails(archive({"notes.md": ""}), Path("a.tgz"))]


def test_the_real_mails():
    dataset = SpamAssassin()
    paths = prepared(dataset, data_root(), ignore)
    train, test = (open_prepared(dataset, paths[split]) for split in ("train", "test"))
    assert (len(train), len(test)) == (4837, 1209)
    assert train.y.sum() + test.y.sum() == 1896
    domains = np.concatenate([train.columns["client"], test.columns["client"]])
    assert np.count_nonzero(domains == "hotmail.com") == 295
    assert not np.isin(train.x, [0, 1], invert=True).any()
