"""Origins of runs: samples, user modules and formulas behind their results, sealed by runs.

Runs of equal settings repeat one experiment only if their origins are equal, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from raysim.results.references import SHOWN_DIGITS
from raysim.results.runs import RunRecord, result_settings
from raysim.storage.checkpoints import TEST_SAMPLES, TRAINING_SAMPLES
from raysim.storage.plugins import Plugins
from raysim.storage.revisions import COMPONENTS, FORMULA, in_words
from raysim.user_input import key_text
from raysim.user_input.limits import OF_RUN

OF_SAMPLES = ("dataset.", "partition.")
"""Settings that samples depend on, in addition to the number of clients."""


class Origin(NamedTuple):
    """Samples, module or formula that a result depends on.

    Attributes:
        name: The displayed name.
        settings: The settings that decide it, as text.
    """

    name: str
    settings: str = ""


def origins_of(record: RunRecord) -> dict[Origin, str]:
    """Return the version of each origin of a run, as its directory seals them.

    Versions are digests of the samples and of the sources of the user's own modules, and the
    revisions of components. The revision of the method's formula is "unknown" if a finished run has
    no checkpoint. The samples of a user's own task do not follow from settings and are left out.
    """
    versions = {
        Origin(f"source of {module}"): digest[:SHOWN_DIGITS]
        for module, digest in Plugins(record.path).sources().items()
    }
    if record.summary is not None:
        method, revisions = record.settings.get("method.name"), record.revisions or {}
        versions[Origin(f"{FORMULA} {method}")] = str(revisions.get(FORMULA, "unknown"))
        for name, start in COMPONENTS.items() if revisions else ():
            own_settings = {k: v for k, v in record.settings.items() if f"{k}.".startswith(start)}
            versions[Origin(name, key_text(own_settings))] = str(revisions[name])
    if not record.own_task:
        settings = {k: v for k, v in record.settings.items() if k.startswith(OF_SAMPLES)}
        own_data = [record.seed] if settings.get("dataset.seed") == OF_RUN else []
        text = key_text(record.settings.get("clients"), settings, *own_data)
        for name in (TRAINING_SAMPLES, TEST_SAMPLES):
            if digest := record.sealed(name):
                dataset = record.settings.get("dataset.name")
                versions[Origin(f"{name} of {dataset}", text)] = digest[:SHOWN_DIGITS]
    return versions


def origin_notes(runs: Mapping[str, Mapping[Origin, str]]) -> list[str]:
    """Return a line for each origin with different versions among the runs that have it.

    Args:
        runs: Origins of each run, by its label.
    """
    labels: dict[Origin, dict[str, list[str]]] = {}
    for label, origins in runs.items():
        for origin, version in origins.items():
            labels.setdefault(origin, {}).setdefault(version, []).append(label)
    return [
        f"{origin.name}: differs among the runs: {'; '.join(map(_of_version, versions.items()))}"
        for origin, versions in labels.items()
        if len(versions) > 1
    ]


def revisions_of(records: Sequence[RunRecord]) -> dict[Path, str | None]:
    """Return the revisions of each run in words; missing ones are taken from runs of its settings.

    A run that fails before its first checkpoint has sealed no revision. The revisions of a finished
    run without checkpoints stay unknown.
    """
    sealed = {record.path: record.revisions for record in records}
    revisions = {
        path: in_words(sealed_revision) if sealed_revision else None
        for path, sealed_revision in sealed.items()
    }
    settings = {record.path: key_text(result_settings(record.settings)) for record in records}
    known: dict[str, set[str]] = {}
    for path, revision in revisions.items():
        if revision is not None:
            known.setdefault(settings[path], set()).add(revision)
    for record in records:
        others = known.get(settings[record.path], set())
        if revisions[record.path] is None and record.summary is None and len(others) == 1:
            revisions[record.path] = min(others)
    return revisions


def _of_version(item: tuple[str, list[str]]) -> str:
    version, (first, *others) = item
    more = f" and {len(others)} more" if others else ""
    return f"{version} in {first}{more}"
