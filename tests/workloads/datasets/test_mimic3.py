"""MIMIC-III: small tables in the published format, and their join worked out by hand."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import raysim.workloads  # noqa: F401 - registers names
from raysim.errors import DataError
from raysim.samples.arrow import open_split
from raysim.samples.data import DATASETS, Split
from raysim.workloads.datasets.mimic3 import Mimic3

ADMISSIONS = """\
"ROW_ID","SUBJECT_ID","HADM_ID","ADMITTIME","DISCHTIME","DEATHTIME","DIAGNOSIS","HOSPITAL_EXPIRE_FLAG"
1,22,165315,2196-04-09 12:26:00,2196-04-10 15:54:00,,"BENZODIAZEPINE, OVERDOSE",0
2,23,124321,2157-10-18 19:34:00,2157-10-25 14:00:00,,BRAIN MASS,1
3,23,152223,2153-09-03 07:15:00,2153-09-08 19:10:00,,CORONARY ARTERY DISEASE,0
4,24,161859,2139-06-06 00:00:00,2139-06-09 12:48:00,2139-06-09 12:48:00,"SAID ""ILL"", ONCE",1
5,25,129635,2160-11-02 02:06:00,2160-11-05 14:55:00,,ACUTE CORONARY SYNDROME,0
6,26,197661,2126-05-06 15:16:00,2126-05-13 15:00:00,,V-TACH,0
7,99,197662,2126-05-06 15:16:00,2126-05-13 15:00:00,,NOT AMONG THE PATIENTS,0
"""
# Ages at the first admission: 22: 64, a day before the birthday; 23: 300 (over 89); 24: 40 on the
# birthday; 25: 0; 26: 89, a day before the birthday.
PATIENTS = """\
"ROW_ID","SUBJECT_ID","GENDER","DOB","DOD","EXPIRE_FLAG"
2,26,"M",2036-05-07 00:00:00,,0
3,25,"M",2160-11-02 00:00:00,,0
4,24,"F",2099-06-06 00:00:00,2139-06-09 00:00:00,1
5,23,"F",1853-09-03 00:00:00,,0
6,22,"M",2131-04-10 00:00:00,,0
7,98,"M",2131-05-07 00:00:00,,0
"""
PRESCRIPTIONS = """\
"ROW_ID","SUBJECT_ID","HADM_ID","ICUSTAY_ID","STARTDATE","ENDDATE","DRUG_TYPE","DRUG"
1,22,165315,,2196-04-09 00:00:00,2196-04-10 00:00:00,"MAIN","D5W"
2,22,165315,,2196-04-11 00:00:00,2196-04-12 00:00:00,"MAIN"," d5w "
3,22,165315,,2196-04-11 00:00:00,2196-04-12 00:00:00,"MAIN","Insulin, Human"
4,22,165315,,2196-04-12 00:00:00,2196-04-12 00:00:00,"MAIN","Too Late"
5,22,165315,,2196-04-08 00:00:00,2196-04-12 00:00:00,"MAIN","Too Early"
6,23,124321,,2157-10-18 00:00:00,2157-10-20 00:00:00,"MAIN","Second Stay"
7,23,152223,,2153-09-03 00:00:00,2153-09-04 00:00:00,"MAIN","D5W"
8,24,161859,,2139-06-07 00:00:00,2139-06-08 00:00:00,"MAIN","D5W"
9,24,161859,,2139-06-07 00:00:00,2139-06-08 00:00:00,"MAIN","Heparin Sodium"
10,25,129635,,,2160-11-08 00:00:00,"MAIN","No Start"
11,25,129635,,2160-11-02 00:00:00,2160-11-08 00:00:00,"MAIN",
12,26,197661,,2126-05-06 00:00:00,,"MAIN","Heparin Sodium"
13,98,197661,,2196-04-09 00:00:00,,"MAIN","Of Nobody"
14,99,197662,,2196-04-09 00:00:00,,"MAIN","Of Nobody"
"""


def copied(table: str, copies: int = 5) -> str:
    """Repeat the rows of a table with other subjects, 100 apart."""
    header, *rows = table.splitlines()
    repeated = []
    for copy in range(copies):
        for row in rows:
            number, subject, rest = row.split(",", 2)
            repeated.append(f"{number},{int(subject) + 100 * copy},{rest}")
    return "\n".join([header, *repeated]) + "\n"


# With copies, each of the drugs is given to patients for training.
TABLES = {
    "ADMISSIONS": copied(ADMISSIONS),
    "PATIENTS": copied(PATIENTS),
    "PRESCRIPTIONS": copied(PRESCRIPTIONS),
}
# Subject: drugs, age group, gender (1 male), died. Subject 25 has no drug with a start.
ONCE: dict[int, tuple[set[str], int, int, int]] = {
    22: ({"d5w", "insulin, human"}, 6, 1, 0),
    23: ({"d5w"}, 9, 0, 0),
    24: ({"d5w", "heparin sodium"}, 4, 0, 1),
    26: ({"heparin sodium"}, 8, 1, 0),
}
EXPECTED = {subject + 100 * copy: patient for copy in range(5) for subject, patient in ONCE.items()}


def ignore(what: str, done: int, total: int) -> None:
    pass


def put(root: Path, packed: bool = False, **changed: str) -> Path:
    folder = root / "mimic3"
    folder.mkdir(parents=True)
    for name, text in (TABLES | changed).items():
        if packed:
            (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / f"{name}.csv").write_text(text)
    return folder


def opened(root: Path, **settings: Any) -> dict[str, Split]:
    return {
        split: open_split(path) for split, path in Mimic3(**settings).prepare(root, ignore).items()
    }


def patients(found: dict[str, Split]) -> dict[int, tuple[set[str], int, int, int]]:
    """Read the prepared splits back into what EXPECTED has."""
    names = found["drugs"].x
    read = {}
    for split in (found["train"], found["test"]):
        for row, x in enumerate(split.x):
            columns = {name: int(values[row]) for name, values in split.columns.items()}
            assert set(np.flatnonzero(x)) <= set(range(len(names)))
            read[columns["subject"]] = (
                {str(name) for name in names[x[: len(names)] == 1]},
                columns["age_group"],
                columns["gender"],
                int(split.y[row]),
            )
    return read


def test_the_join_by_hand(tmp_path: Path) -> None:
    put(tmp_path)
    found = opened(tmp_path, features=7)
    assert (len(found["train"]), len(found["test"])) == (15, 5)
    for split in ("train", "test"):
        assert found[split].x.dtype == np.uint8
        assert found[split].x.shape[1:] == (7,)
        assert found[split].y.dtype == np.int64
    assert patients(found) == EXPECTED


def test_drugs_are_ranked_by_training_patients_and_padded_with_zeros(tmp_path: Path) -> None:
    put(tmp_path)
    found = opened(tmp_path, features=7)
    given = [EXPECTED[int(subject)][0] for subject in found["train"].columns["subject"]]
    counts = {name: sum(name in drugs for drugs in given) for name in set().union(*given)}
    ranked = sorted(counts, key=lambda name: (-counts[name], name))
    assert found["drugs"].x.tolist() == ranked
    assert found["drugs"].y.tolist() == [counts[name] for name in ranked]
    assert found["train"].x.sum(0).tolist() == [counts[n] for n in ranked] + [0] * (7 - len(ranked))


def test_fewer_features_keep_the_most_frequent(tmp_path: Path) -> None:
    put(tmp_path)
    everything, one = opened(tmp_path), opened(tmp_path, features=1)
    assert everything["train"].x.shape == (15, 1473)
    assert np.array_equal(one["train"].x, everything["train"].x[:, :1])
    assert one["drugs"].x.tolist() == everything["drugs"].x.tolist()[:1]


def test_gzipped_tables_with_lower_case_headers(tmp_path: Path) -> None:
    put(tmp_path / "plain")
    lowered = {}
    for name, text in TABLES.items():
        header, rest = text.split("\n", 1)
        lowered[name] = f"{header.lower()}\n{rest}"
    put(tmp_path / "packed", packed=True, **lowered)
    plain, packed = opened(tmp_path / "plain"), opened(tmp_path / "packed")
    assert np.array_equal(plain["train"].x, packed["train"].x)
    assert patients(plain) == patients(packed)


def test_three_quarters_are_for_training(tmp_path: Path) -> None:
    subjects = range(1, 401)
    put(
        tmp_path,
        ADMISSIONS="SUBJECT_ID,ADMITTIME,HOSPITAL_EXPIRE_FLAG\n"
        + "".join(f"{s},2150-01-01 00:00:00,{s % 2}\n" for s in subjects),
        PATIENTS="SUBJECT_ID,GENDER,DOB\n" + "".join(f"{s},F,2100-01-01\n" for s in subjects),
        PRESCRIPTIONS="SUBJECT_ID,STARTDATE,DRUG\n"
        + "".join(f"{s},2150-01-01,drug {s % 3}\n" for s in subjects),
    )
    found = opened(tmp_path, features=3)
    train, test = (found[split].columns["subject"] for split in ("train", "test"))
    assert (len(train), len(test)) == (300, 100)
    assert sorted([*train, *test]) == list(subjects)
    # At random: of the first 100 subjects about 25 are for testing.
    assert 10 < (test <= 100).sum() < 40
    for split in ("train", "test"):
        assert np.array_equal(found[split].y, found[split].columns["subject"] % 2)


def test_decoding_gives_floats() -> None:
    decoded = Mimic3().decode(torch.tensor([0, 1], dtype=torch.uint8))
    assert torch.equal(decoded, torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("missing", TABLES)
def test_a_missing_table_is_named(tmp_path: Path, missing: str) -> None:
    folder = put(tmp_path)
    (folder / f"{missing}.csv").unlink()
    with pytest.raises(DataError, match=f"^{folder}/{missing}.csv: not there.*physionet.org"):
        Mimic3().prepare(tmp_path, ignore)


DAMAGES = {
    "no column": ("PATIENTS", '"DOB"', '"BORN"', "has no column DOB; it has ROW_ID, SUBJECT_ID, "),
    "no such day": ("ADMISSIONS", "2139-06-06 ", "2139-02-30 ", "line 5: ADMITTIME is '2139-02-30"),
    "no date": ("PATIENTS", "1853-09-03 00:00:00", "old", "line 5: DOB is 'old'; must be a d"),
    "bad start": ("PRESCRIPTIONS", "2139-06-07 ", "7.6.2139 ", "line 9: STARTDATE is '7.6.2139"),
    "empty date": ("ADMISSIONS", "2126-05-06 15:16:00", "", "line 7: ADMITTIME is empty"),
    "no number": (
        "PRESCRIPTIONS",
        "\n9,24,",
        "\n9,x24,",
        "line 10: SUBJECT_ID is 'x24'; must be a whole",
    ),
    "no subject": ("ADMISSIONS", "\n3,23,", "\n3,,", "line 4: SUBJECT_ID is empty"),
    "other flag": ("ADMISSIONS", "BRAIN MASS,1", "BRAIN MASS,2", "line 3: HOSPITAL_EXPIRE_FLAG is"),
    "other gender": ("PATIENTS", '25,"M"', '25,"X"', "line 3: GENDER is X; allowed are F and M"),
    "twice": ("PATIENTS", "7,98,", "7,23,", "line 7: SUBJECT_ID 23 is there a second time"),
    "unborn": ("PATIENTS", "2131-04-10", "2196-04-10", "line 6: DOB is after the first admission"),
    "blank line": ("PATIENTS", "\n3,25,", "\n\n3,25,", "line 3: SUBJECT_ID is empty"),
    "short line": ("PATIENTS", ",2099-06-06 00:00:00,2139-06-09 00:00:00,1", "", ".*Row #4: Expec"),
    "empty file": ("PRESCRIPTIONS", TABLES["PRESCRIPTIONS"], "", "cannot be read as a CSV table"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_and_leaves_nothing_prepared(tmp_path: Path, damage: str) -> None:
    name, old, new, message = DAMAGES[damage]
    assert old in TABLES[name]
    folder = put(tmp_path, **{name: TABLES[name].replace(old, new, 1)})
    with pytest.raises(DataError, match=f"^{folder}/{name}.csv: {message}"):
        Mimic3().prepare(tmp_path, ignore)
    assert {path.name for path in folder.iterdir()} == {".lock", *(f"{n}.csv" for n in TABLES)}


def test_a_truncated_gzip_is_named(tmp_path: Path) -> None:
    folder = put(tmp_path, packed=True)
    path = folder / "PATIENTS.csv.gz"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(DataError, match=f"^{path}: cannot be read as a CSV table"):
        Mimic3().prepare(tmp_path, ignore)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    folder = put(tmp_path)
    path = folder / "PRESCRIPTIONS.csv"
    path.write_bytes(path.read_bytes().replace(b"Heparin", b"H\xe9parin"))
    with pytest.raises(DataError, match=f"^{path}: cannot be read as a CSV table.*Row #10"):
        Mimic3().prepare(tmp_path, ignore)


def test_tables_that_share_no_patient_are_named(tmp_path: Path) -> None:
    folder = put(tmp_path, PATIENTS="SUBJECT_ID,GENDER,DOB\n1,F,2100-01-01\n")
    with pytest.raises(DataError, match=f"^{folder}/PATIENTS.csv: no SUBJECT_ID of it is in ADMI"):
        Mimic3().prepare(tmp_path, ignore)


def test_too_few_patients_with_drugs_are_named(tmp_path: Path) -> None:
    folder = put(tmp_path, PRESCRIPTIONS="\n".join(PRESCRIPTIONS.split("\n")[:2]))
    with pytest.raises(DataError, match=f"^{folder}: 1 patients of its tables were given a drug"):
        Mimic3().prepare(tmp_path, ignore)


def test_registered() -> None:
    dataset = DATASETS.get("mimic3")()
    assert dataset.settings() == {"name": "mimic3", "features": 1473}
    assert (dataset.shape, dataset.classes) == ((1473,), 2)
