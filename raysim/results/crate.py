"""RO-Crate of results: what an archive of runs holds, for people and programs without raysim.

Specification: RO-Crate 1.1, https://w3id.org/ro/crate/1.1. The root is the data set of results; a
run is a `CreateAction` of raysim, with the settings and the data that went in, and its files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from raysim.results.citation import UNKNOWN, data_of, software_of, started_in
from raysim.results.runs import RunRecord

CRATE = "ro-crate-metadata.json"
CONTEXT = "https://w3id.org/ro/crate/1.1/context"
FURTHER = {"sha256": "http://schema.org/sha256"}
"""Terms of schema.org that the context of RO-Crate 1.1 lacks."""
PROFILE = "https://w3id.org/ro/crate/1.1"
FORMATS = {
    ".json": "application/json",
    ".parquet": "application/vnd.apache.parquet",
    ".arrow": "application/vnd.apache.arrow.file",
}
Entity = dict[str, Any]


def crate_of(
    places: Mapping[str, RunRecord], files: Mapping[str, Path | bytes], root: str
) -> dict[str, Any]:
    """Return the metadata of an archive of runs.

    Args:
        places: The runs by their folder in the archive.
        files: The archive's files by name, with their paths or contents.
        root: The folder in the archive that all of them lie in.
    """
    runs = [*places.values()]
    entities = [_file(name, source) for name, source in files.items()]
    software = {_software(run)["@id"]: _software(run) for run in runs}
    data = {entity["@id"]: entity for run in runs for entity in [_data(run)]}
    whose = [_action(run, name, [*files]) for name, run in places.items()]
    licence: Entity = {
        "@id": "#licence",
        "@type": "CreativeWork",
        "name": "as the authors of these results state",
        "description": "The data that the runs trained on has the licence of its source.",
    }
    results: Entity = {
        "@id": "./",
        "@type": "Dataset",
        "name": f"{root}: results of simulated federated learning",
        "description": f"Settings and measured values of runs of raysim: {len(runs)}.",
        "datePublished": max(started_in(run) or _written(run) for run in runs),
        "license": _id(licence),
        "hasPart": [_id(entity) for entity in entities],
        "mentions": [_id(entity) for entity in (*data.values(), *whose)],
    }
    descriptor: Entity = {
        "@id": CRATE,
        "@type": "CreativeWork",
        "conformsTo": {"@id": PROFILE},
        "about": {"@id": "./"},
    }
    graph = [descriptor, results, licence, *software.values(), *data.values(), *whose, *entities]
    return {"@context": [CONTEXT, FURTHER], "@graph": graph}


def _id(entity: Entity) -> Entity:
    return {"@id": entity["@id"]}


def _address(name: str) -> str:
    """Return the address of a file or folder in the archive: its name, quoted as URIs demand."""
    return quote(name, safe="/=,+@()")


def _written(run: RunRecord) -> str:
    """Return the moment at which a run's settings were written, for one that records no start."""
    modified = (run.path / "config.json").stat().st_mtime
    return datetime.fromtimestamp(modified, UTC).isoformat(timespec="seconds")


def _file(name: str, source: Path | bytes) -> Entity:
    content = source if isinstance(source, bytes) else source.read_bytes()
    return {
        "@id": _address(name),
        "@type": "File",
        "name": PurePosixPath(name).name,
        "encodingFormat": FORMATS[PurePosixPath(name).suffix],
        "contentSize": str(len(content)),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _software(run: RunRecord) -> Entity:
    version, commit = software_of(run)
    return {
        "@id": f"#{_address(f'raysim-{version}-{commit or UNKNOWN}')}",
        "@type": "SoftwareApplication",
        "name": "raysim",
        "softwareVersion": f"{version}, commit {commit}" if commit else version,
    }


def _data(run: RunRecord) -> Entity:
    name, digests = data_of(run)
    return {
        "@id": f"#data-{hashlib.sha256(repr((name, digests)).encode()).hexdigest()[:12]}",
        "@type": "Dataset",
        "name": name,
        "identifier": [f"sha256 of {part}: {digest}" for part, digest in digests.items()],
    }


def _action(run: RunRecord, folder: str, files: Sequence[str]) -> Entity:
    own = [name for name in files if name.startswith(f"{folder}/")]
    inputs = [_id(_data(run)), {"@id": _address(f"{folder}/config.json")}]
    started = started_in(run)
    return {
        "@id": f"#{_address(folder)}",
        "@type": "CreateAction",
        "name": f"run {folder}: {run.settings.get('method.name')}, seed {run.seed}, {run.state}",
        **({"startTime": started} if started else {}),
        "instrument": _id(_software(run)),
        "object": inputs,
        "result": [{"@id": _address(name)} for name in own if name != f"{folder}/config.json"],
    }
