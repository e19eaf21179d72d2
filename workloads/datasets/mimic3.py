"""MIMIC-III: mortality of intensive-care patients, predicted from the drugs of the first 48 hours.

Source: Johnson et al., MIMIC-III, a freely accessible critical care database, Scientific Data 3,
2016. Three of its tables are read, and prepared as in Uddin et al., Mutual Information Driven
Federated Learning, IEEE TPDS 2021 (MIFL), section 5.1: ADMISSIONS, PATIENTS and PRESCRIPTIONS are
joined on SUBJECT_ID; a sample is a patient with the drugs prescribed in the first 48 hours, the
label is the mortality, and three quarters (22,500 of 30,000) are for training.

Chosen here, as the paper does not print it: the stay is the patient's first admission; mortality is
HOSPITAL_EXPIRE_FLAG of that admission; a drug counts if its STARTDATE, which is a day, lies
between the day of admission and 48 hours after the admission; names that differ in case or outer
blanks are one drug; patients without any drug are left out; age groups are tens of years, the last
of them 90 and above. Patients over 89 have a date of birth 300 years before their first admission,
so they are in the last group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field
from torch import Tensor

from raysim.errors import DataError
from raysim.numbers.arrays import Array
from raysim.numbers.seeds import stream
from raysim.samples.client_indices import Indices
from raysim.samples.data import Dataset, Progress, Split
from raysim.user_input.limits import Count
from raysim.workloads.datasets.csv_files import TEXT, TIME, WHOLE, find_csv, line_of, read_csv
from raysim.workloads.datasets.prepared import prepare_once

PUBLISHED = "https://physionet.org/content/mimiciii/1.4/ (for credentialed users)"
TABLES: Mapping[str, Mapping[str, pa.DataType]] = {
    "ADMISSIONS": {"SUBJECT_ID": WHOLE, "ADMITTIME": TIME, "HOSPITAL_EXPIRE_FLAG": WHOLE},
    "PATIENTS": {"SUBJECT_ID": WHOLE, "GENDER": TEXT, "DOB": TIME},
    "PRESCRIPTIONS": {"SUBJECT_ID": WHOLE, "STARTDATE": TIME, "DRUG": TEXT},
}
"""Tables and the columns that are read."""

GENDERS = ("F", "M")
STAY = np.timedelta64(48, "h")
TRAINING_FRACTION = 0.75
LAST_AGE_GROUP = 9


@dataclass(frozen=True)
class Patients:
    """Patients listed in both ADMISSIONS and PATIENTS [P], ascending by subject."""

    subject: Indices
    admitted: Array
    age_group: Indices
    gender: Indices
    died: Indices


@dataclass(frozen=True)
class Drugs:
    """Names of drugs, and the prescriptions as pairs of patient and drug [N'], each pair once."""

    names: list[str]
    patient: Indices
    drug: Indices


class Mimic3(Dataset):
    """Mortality of intensive-care patients, from the drugs of their first 48 hours (MIFL).

    Not downloaded: ADMISSIONS.csv, PATIENTS.csv and PRESCRIPTIONS.csv, plain or as .gz, belong
    in the folder `mimic3` of the data root. Inputs are 0 or 1 for each of the drugs that most
    training patients were given, most frequent first; where there are fewer drugs than
    `dataset.features` the rest is 0. The columns are `subject`, `age_group` (0 to 9, tens of years)
    and `gender` (0 female, 1 male); the prepared file `drugs` holds the drugs' names and numbers of
    training patients. The two classes are surviving and dying, which one logit can tell apart.
    """

    features: Count = Field(
        default=1473, description="drugs, most frequent first; padded with zeros"
    )
    classes: ClassVar[int] = 2  # survived (0), died in hospital (1)
    class_names: ClassVar[tuple[str, ...]] = ("survived", "died")
    client_column: ClassVar[str] = "subject"

    @property
    def shape(self) -> tuple[int, ...]:
        """One 0 or 1 per drug."""
        return (self.features,)

    def decode(self, x: Tensor) -> Tensor:
        """Convert bytes [B, features] to floats."""
        return x.float()

    def check_files(self, root: Path) -> None:
        """Check that the tables are there.

        Raises:
            DataError: one is missing.
        """
        _tables(root / "mimic3")

    def prepare(self, root: Path, progress: Progress) -> Mapping[str, Path]:
        """Join the tables, and write each split and the drugs' names as Arrow files.

        Raises:
            DataError: a table is missing or damaged.
        """
        folder = root / "mimic3"

        def build(work_folder: Path) -> dict[str, Split]:
            paths = _tables(folder)
            patients = _patients(paths["ADMISSIONS"], paths["PATIENTS"])
            return self._splits(patients, _drugs(paths["PRESCRIPTIONS"], patients), folder)

        variant = f"features-{self.features}"
        return prepare_once(folder, ("train", "test", "drugs"), build, progress, variant)

    def _splits(self, patients: Patients, drugs: Drugs, folder: Path) -> dict[str, Split]:
        treated = np.unique(drugs.patient)
        training = round(TRAINING_FRACTION * len(treated))
        if not 0 < training < len(treated):
            raise DataError(
                f"{folder}: {len(treated)} patients of its tables were given a drug in the first"
                " 48 hours; at least 2 are needed"
            )
        shuffled = stream(0, "mimic3").permutation(treated)
        rows = {"train": np.sort(shuffled[:training]), "test": np.sort(shuffled[training:])}
        counts = np.bincount(
            drugs.drug[np.isin(drugs.patient, rows["train"])], minlength=len(drugs.names)
        )
        frequent = np.argsort(-counts, kind="stable")[: self.features]
        frequent = frequent[counts[frequent] > 0]
        x = np.zeros((len(patients.subject), self.features), np.uint8)
        feature = np.full(len(drugs.names), -1)  # of each drug
        feature[frequent] = np.arange(len(frequent))
        used = feature[drugs.drug] >= 0
        x[drugs.patient[used], feature[drugs.drug[used]]] = 1
        columns = {
            "subject": patients.subject,
            "age_group": patients.age_group,
            "gender": patients.gender,
        }
        splits = {
            split: Split(x[at], patients.died[at], {k: v[at] for k, v in columns.items()})
            for split, at in rows.items()
        }
        return {**splits, "drugs": Split(np.array(drugs.names)[frequent], counts[frequent])}


def _tables(folder: Path) -> dict[str, Path]:
    return {name: find_csv(folder, name, PUBLISHED) for name in TABLES}


def _patients(admissions_path: Path, patients_path: Path) -> Patients:
    """Join ADMISSIONS and PATIENTS on SUBJECT_ID, with each patient's first admission."""
    admissions = _columns(admissions_path, "ADMISSIONS")
    people = _columns(patients_path, "PATIENTS")
    died = admissions["HOSPITAL_EXPIRE_FLAG"]
    _require(admissions_path, "HOSPITAL_EXPIRE_FLAG", died, (0, 1))
    _require(patients_path, "GENDER", people["GENDER"], GENDERS)
    _require_unique(patients_path, "SUBJECT_ID", people["SUBJECT_ID"])
    in_time = np.lexsort([admissions["ADMITTIME"], admissions["SUBJECT_ID"]])
    admitted, first = np.unique(admissions["SUBJECT_ID"][in_time], return_index=True)
    subject, at, person = np.intersect1d(admitted, people["SUBJECT_ID"], return_indices=True)
    if len(subject) == 0:
        raise DataError(f"{patients_path}: no SUBJECT_ID of it is in {admissions_path.name}")
    stay = in_time[first[at]]
    years = _years(people["DOB"][person], admissions["ADMITTIME"][stay])
    if len(wrong := np.flatnonzero(years < 0)):
        raise DataError(
            f"{patients_path}: line {line_of(person[wrong[0]])}: DOB is after the first admission"
            f" of SUBJECT_ID {subject[wrong[0]]}"
        )
    return Patients(
        subject,
        admissions["ADMITTIME"][stay],
        np.minimum(years // 10, LAST_AGE_GROUP),
        (people["GENDER"][person] == GENDERS[1]).astype(np.int64),
        died[stay],
    )


def _drugs(path: Path, patients: Patients) -> Drugs:
    """Read the prescriptions of the first 48 hours of the stays."""
    table = read_csv(path, TABLES["PRESCRIPTIONS"], frozenset({"STARTDATE", "DRUG"}))
    subject, started = (table[name].to_numpy() for name in ("SUBJECT_ID", "STARTDATE"))
    at = np.searchsorted(patients.subject, subject) % len(patients.subject)
    admitted = patients.admitted[at]
    is_given = (
        (patients.subject[at] == subject)
        & (started >= admitted.astype("datetime64[D]"))
        & (started <= admitted + STAY)
    )
    named = pc.utf8_lower(pc.utf8_trim_whitespace(table["DRUG"])).to_numpy()[is_given]
    names, drug = np.unique(named.astype(str), return_inverse=True)
    pairs = np.unique(np.stack([at[is_given], drug], axis=1), axis=0)
    return Drugs(names.tolist(), pairs[:, 0], pairs[:, 1])


def _columns(path: Path, name: str) -> dict[str, Array]:
    table = read_csv(path, TABLES[name])
    return {column: table[column].to_numpy() for column in TABLES[name]}


def _require(path: Path, name: str, values: Array, allowed: tuple[Any, ...]) -> None:
    if len(wrong := np.flatnonzero(~np.isin(values, allowed))):
        raise DataError(
            f"{path}: line {line_of(wrong[0])}: {name} is {values[wrong[0]]}; allowed are"
            f" {' and '.join(map(str, allowed))}"
        )


def _require_unique(path: Path, name: str, values: Array) -> None:
    _, firsts = np.unique(values, return_index=True)
    if len(again := np.setdiff1d(np.arange(len(values)), firsts)):
        raise DataError(
            f"{path}: line {line_of(again[0])}: {name} {values[again[0]]} is there a second time;"
            " allowed is once"
        )


def _years(born: Array, then: Array) -> Indices:
    """Return the age in years."""
    months = (then.astype("datetime64[M]") - born.astype("datetime64[M]")).astype(np.int64)
    day, birthday = (t - t.astype("datetime64[M]").astype(t.dtype) for t in (then, born))
    whole: Indices = (months - (day < birthday)) // 12
    return whole
