"""Estimate of one run before it starts: time, memory, disk and bytes, of `raysim run --dry-run`.

The speed is `tuning.tables.work`'s, measured on a few rounds of the run in this process, which also
show its bytes, its files and its memory. The rest is arithmetic: actors share a round's clients and
its evaluation, and each takes the memory of this process.

Legend: K clients, m of them a round, R rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import nan

from torch import nn

from raysim.config import Settings
from raysim.federation.federation import from_settings
from raysim.numbers.tensors import base_of, nbytes, state_of
from raysim.process.machine.cores import usable_cores
from raysim.storage.checkpoints import BEST_MODEL, KEPT_CHECKPOINTS, MODEL
from raysim.tuning.tables.work import DataSize, Pace, RunCost, Seconds, trained_clients
from raysim.workloads.datasets.fetch import data_root

RAY_START = 6.0
"""Seconds in which Ray and its actors start."""
RAY_MEMORY = 300e6
"""Bytes of Ray's own processes."""
CLIENT_ROW, CLIENT_WORDS = 24, 48
"""Bytes of a client's row of a round, and of its words in a checkpoint."""
INDEX = 8
"""Bytes of a sample's index in `partition.arrow`."""
OF_STATES = "clients"
"""Folder of client states in a run directory."""


@dataclass(frozen=True)
class Estimate:
    """Estimate of a run on this machine.

    Attributes:
        seconds: Its parts, with its actors.
        actors: Number of actors; 0 in this process.
        memory: Bytes in memory of all its processes; NaN if they are unknown, as on Windows.
        disk: Bytes of its run directory.
        bytes_up: Bytes that the clients of a round send.
        bytes_down: Bytes that they receive.
        measured: Rounds that were measured.
        values: Number of values of the model without its base.
        frozen: Number of values of the base, which does not travel.
    """

    seconds: Seconds
    actors: int
    memory: float
    disk: float
    bytes_up: float
    bytes_down: float
    measured: int
    values: int
    frozen: int


def estimate(settings: Settings) -> Estimate:
    """Estimate a run from a few rounds of it, which are trained in a temporary folder.

    Raises:
        RaysimError: a setting, a file or a client does not allow the run.
    """
    cost = RunCost()
    parts, pace, size = cost.parts(settings), cost.pace(settings), cost.size(settings)
    actors = actors_of(settings)
    up, down = (bytes_of_round(settings, pace, name) for name in ("bytes_up", "bytes_down"))
    peak, network = peak_memory(), network_of(settings)
    base = base_of(network)
    of_actor = peak - nbytes({"base": base})  # processes share the base
    return Estimate(
        seconds=with_actors(parts, settings, actors),
        actors=actors,
        memory=peak + of_actor * actors + RAY_MEMORY * bool(actors),
        disk=disk_of(settings, pace, size),
        bytes_up=up,
        bytes_down=down,
        measured=len(pace.rows),
        values=sum(tensor.numel() for tensor in state_of(network).values()),
        frozen=sum(tensor.numel() for tensor in base.values()),
    )


def network_of(settings: Settings) -> nn.Module:
    """Return a run's network as it is built, before the method adds its own parts."""
    federation = from_settings(settings, data_root, lambda *_: None)
    return federation.network(settings.seed, settings.method)


def actors_of(settings: Settings) -> int:
    """Return the number of actors on this machine; 0 if the driver trains the clients."""
    engine = settings.engine
    if engine.backend == "inline":
        return 0
    if engine.actors != "auto":
        return engine.actors
    return max(min(usable_cores(), settings.cohort_size), 1)


def with_actors(parts: Seconds, settings: Settings, actors: int) -> Seconds:
    """Return the seconds of a run whose clients are trained by actors.

    Actors beyond the cores do not train faster, and those beyond the clients of a round not at all.
    """
    if not actors:
        return parts
    share = 1 / min(actors, usable_cores(), trained_clients(settings))
    return Seconds(
        parts.start + RAY_START, parts.training * share, parts.evaluation * share, parts.checkpoints
    )


def peak_memory() -> float:
    """Return the largest memory that this process has had, in bytes; NaN if it is unknown."""
    try:
        import resource
    except ImportError:  # Windows
        return nan
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def bytes_of_round(settings: Settings, pace: Pace, column: str) -> float:
    """Return the bytes of a round: those of a client in the measured ones, of which all m.

    Asynchronous rounds have a model down for each update, but the clients of the first round start
    at once, and later ones in groups: few rounds have no mean.
    """
    asynchrony, rows = settings.asynchrony, pace.rows
    total, clients = (sum(row[name] for row in rows) for name in (column, "clients"))
    if asynchrony and column == "bytes_down":
        first = rows[0]
        total, clients = first[column], max(asynchrony.concurrency, first["clients"])
    return float(total / max(clients, 1)) * trained_clients(settings)


def disk_of(settings: Settings, pace: Pace, size: DataSize) -> float:
    """Return the bytes of the run directory at the end of a run.

    Args:
        settings: The run's settings.
        pace: The measured rounds, with their files.
        size: The run's samples.
    """
    rounds, cohort, every = settings.rounds, trained_clients(settings), settings.checkpoint_every
    share = min(cohort / settings.clients, 1)
    taken_part = settings.clients * _taking_part(share, rounds)
    kept = min(KEPT_CHECKPOINTS, -(-rounds // every))
    files, states = _by_part(pace.files), _states(pace.files)
    return (
        kept * (files.get("checkpoints", 0.0) + CLIENT_WORDS * taken_part)
        + files.get(MODEL, 0.0) * (1 + settings.keep_clients * cohort)
        + files.get(BEST_MODEL, 0.0)
        + files.get("events", 0.0) / len(pace.rows) * rounds
        + CLIENT_ROW * cohort * rounds
        + (files[OF_STATES] / states * _kept_states(settings) if states else 0.0)
        + INDEX * float(size.clients.sum()) * size.are_listed
    )


def _kept_states(settings: Settings) -> float:
    """Return the number of clients' states at the end of a run.

    The last round keeps all states since the older of the two checkpoints before it, and the newest
    before that one. Without a checkpoint before it, clients keep their last two.
    """
    rounds, cohort, every = settings.rounds, trained_clients(settings), settings.checkpoint_every
    share = min(cohort / settings.clients, 1)
    before = (rounds - 1) // every
    if not before:
        twice = _taking_part(share, rounds) - rounds * share * (1 - share) ** (rounds - 1)
        return settings.clients * (_taking_part(share, rounds) + twice)
    older = max(before + 1 - KEPT_CHECKPOINTS, 1) * every
    return cohort * (rounds - older) + settings.clients * _taking_part(share, older)


def _taking_part(share: float, rounds: int) -> float:
    """Return the expected share of clients that take part, of which each round draws a share."""
    return float(1 - (1 - share) ** rounds)


def _by_part(files: Mapping[str, int]) -> dict[str, float]:
    """Return the bytes of a run's parts, of its checkpoints the newest's."""
    newest = max((n for n in files if n.startswith("checkpoints/")), default="").rpartition("/")[0]
    parts: dict[str, float] = {}
    for name, held in files.items():
        first, *_ = name.split("/")
        part = "events" if first.startswith("events.") else first
        if part != "checkpoints" or name.startswith(f"{newest}/"):
            parts[part] = parts.get(part, 0.0) + held
    return parts


def _states(files: Mapping[str, int]) -> int:
    """Return the number of clients' states among files."""
    return sum(name.startswith(f"{OF_STATES}/") for name in files)
