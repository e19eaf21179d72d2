"""Attack on the passes of a round: the bad clients, and the uploads that they send.

The bad clients are `attack.fraction` of all participants, drawn once by the seed, or
`attack.per_round` clients of each cohort, drawn by seed and round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysim.api.aggregation import Aggregation, Updates
from raysim.api.attack import Attack, KnownUpdates, MeasuredUpdates
from raysim.api.columns import BAD, BAD_CUT, BEYOND
from raysim.api.components import call, called, calling, shown
from raysim.api.differences import same_shapes
from raysim.api.rules import Bases, Batch, Reduced, Trained, Upload, View
from raysim.api.state import State
from raysim.config import Settings
from raysim.driver.rounds.passes import RoundRunner
from raysim.driver.rounds.round_log import RoundLog
from raysim.driver.start.parts import RunParts
from raysim.driver.uploads.dispatch import Dispatch, UploadStep
from raysim.driver.uploads.kept_updates import WEIGHT
from raysim.driver.uploads.upload_differences import send_changed
from raysim.errors import RunError, SettingsError
from raysim.execution.messages import AggregationMessage
from raysim.execution.partial_sum import Columns
from raysim.execution.update_blocks import finite
from raysim.federation.federation import Federation
from raysim.numbers.arrays import Flags, Floats, Integers
from raysim.numbers.given import Given
from raysim.numbers.seeds import sample_cohort, stream, torch_generator
from raysim.numbers.tensors import Groups, Layout, flatten, is_finite
from raysim.storage.updates import BLOCK


def bad_clients(settings: Settings) -> Integers:
    """Return the clients that are bad in all rounds, ascending; none if they vary by round."""
    attack, participants = settings.attack, settings.participants
    if not attack.acts or attack.per_round is not None:
        return np.empty(0, dtype=np.int64)
    count = round(attack.fraction * len(participants))
    return participants.at(_drawn(settings.seed, len(participants), count))


@lru_cache(maxsize=8)
def _drawn(seed: int, clients: int, count: int) -> Integers:
    return np.array(sample_cohort(stream(seed, "bad-clients"), clients, count), dtype=np.int64)


def bad_in_round(settings: Settings, number: int, cohort: Sequence[int]) -> Integers:
    """Return the clients that are bad in a round, ascending.

    Args:
        settings: The run's settings.
        number: Committed rounds, 0 in the first round.
        cohort: The round's clients, ascending.
    """
    per_round = settings.attack.per_round
    if not settings.attack.acts or per_round is None:
        return bad_clients(settings)
    draws = stream(settings.seed, "bad-clients-of-round", number)
    ranks = sample_cohort(draws, len(cohort), min(per_round, len(cohort)))
    return np.array(cohort, dtype=np.int64)[ranks]


def with_attack(runner: RoundRunner, cohort: Sequence[int], dispatch: Dispatch) -> Dispatch:
    """Return a pass with its bad clients.

    In a rehearsal, the first clients are bad, if the run has bad clients.

    Args:
        runner: Runs the pass.
        cohort: The clients of the round, ascending.
        dispatch: The pass.
    """
    settings, few = runner.context.settings, len(runner.few)
    bad = bad_in_round(settings, runner.number, cohort)
    if few:
        most = 1 if settings.attack.knows_updates else few  # such an attack needs honest clients
        anybody = settings.attack.per_round or len(bad_clients(settings))
        bad = np.array(cohort[: most if anybody else 0], dtype=np.int64)
    return _attacked_by(settings, bad, runner.log, dispatch)


def of_version(
    settings: Settings, number: int, cohort: Sequence[int], dispatch: Dispatch
) -> Dispatch:
    """Return the pass from a version with its bad clients.

    Args:
        settings: The run's settings.
        number: The version: rounds committed before it.
        cohort: The clients that start from the version, ascending.
        dispatch: The pass.
    """
    return _attacked_by(settings, bad_in_round(settings, number, cohort), RoundLog(), dispatch)


def _attacked_by(settings: Settings, bad: Integers, log: RoundLog, dispatch: Dispatch) -> Dispatch:
    attack, bases = settings.attack, dispatch.moved_from
    if not attack.acts:
        return dispatch
    attacked = frozenset(np.intersect1d(bad, np.asarray(dispatch.clients)).tolist())
    replaces = bool(attack.changes_uploads and attacked and bases)
    if attack.knows_updates and attacked:
        dispatch = replace(dispatch, stored_groups=bases)
    return dispatch.with_step(
        UploadStep(
            after=(
                partial(
                    _send, attack=attack, bad=attacked, bases=bases, clients=len(dispatch.clients)
                )
                if replaces
                else None
            ),
            server=partial(_received, settings.aggregation, log),
            samples=partial(_samples, attack=attack, bad=attacked, seed=settings.seed)
            if attack.changes_samples
            else None,
            columns=partial(_columns, attacked),
            forge=partial(_forger, attack, attacked) if attack.knows_updates and attacked else None,
        )
    )


@dataclass(frozen=True)
class Forgery:
    """Forger of the updates of bad clients, which know all other updates.

    Attributes:
        attack: The attack.
        names: Names under which the state keeps the vectors and the decision of the pass.
        bad: Whether each client is bad [m].
        vectors: The vectors that the attack kept [vectors, N].
        decided: The attack's decision; empty without one.
    """

    attack: Attack
    names: tuple[str, str]
    bad: Flags
    vectors: Floats
    decided: Floats

    def measured(self, updates: Updates, block: int) -> Floats:
        """Return the attack's measurements of a block, which add up over blocks."""
        return self._asked(Attack.measure, updates, block)

    def forged(self, updates: Updates, block: int) -> Updates:
        """Return the updates of a block with forged ones for the bad clients."""
        rows = updates.differences.clone()
        rows[torch.from_numpy(self.bad)] = torch.from_numpy(
            self._asked(Attack.forge, updates, block)
        )
        return replace(updates, differences=rows)

    def kept(self, updates: Updates, block: int) -> Floats:
        """Return the block's part of the vectors that the attack keeps [vectors, n]."""
        return self._asked(Attack.keep, updates, block) if len(self.vectors) else self.vectors

    def state(self, vectors: Floats) -> State:
        """Return the state that the server keeps for the attack."""
        return dict(zip(self.names, (vectors, self.decided), strict=True))

    def _asked(self, hook: Callable[..., Tensor], updates: Updates, block: int) -> Floats:
        """Call a function of the attack on a block, with all updates known.

        Raises:
            SettingsError: the function fails, or returns something else.
        """
        rows, bad = updates.differences, torch.from_numpy(self.bad)
        vectors = self.vectors[:, block * BLOCK : (block + 1) * BLOCK]
        arguments = (torch.from_numpy(self.decided.copy()), torch.from_numpy(vectors.copy()))
        known = KnownUpdates(rows[~bad], rows[bad], *arguments)
        return finite(self.attack, hook.__name__, call(self.attack, hook, known))


def _forger(
    attack: Attack,
    bad: frozenset[int],
    message: AggregationMessage,
    state: State,
    measure: Callable[[AggregationMessage], Floats],
) -> Forgery | None:
    """Return the forger of a pass; None if only bad clients arrived, or none of them."""
    are_bad = np.isin(message.clients, [*bad])
    if not are_bad.any() or are_bad.all():
        return None
    nothing, shape = np.empty(0), (attack.vectors, len(message.start))
    vectors_name, decided_name = (
        f"attack/{message.pass_number}/{part}" for part in ("vectors", "decided")
    )
    vectors, last = (state.get(name, nothing) for name in (vectors_name, decided_name))
    if vectors.shape != shape:  # the first pass, or other tensors
        vectors, last = np.zeros(shape), nothing
    forger = Forgery(attack, (vectors_name, decided_name), are_bad, vectors, nothing)
    if not attack.measures:
        return forger
    numbers = torch.from_numpy(measure(replace(message, forger=forger, of_forger=True)))
    honest = np.array(message.clients)[~are_bad]
    seen = MeasuredUpdates(numbers, honest, torch.from_numpy(last))
    return replace(forger, decided=finite(attack, "decide", call(attack, Attack.decide, seen)))


def _columns(bad: frozenset[int], clients: Integers) -> Columns:
    return {"bad": np.isin(clients, [*bad]).astype(np.float64)}


def _samples(
    client: int, samples: Batch, classes: int, *, attack: Attack, bad: frozenset[int], seed: int
) -> Batch:
    """Return the samples of a client, which the attack changes if the client is bad."""
    if client not in bad:
        return samples
    return poisoned(attack, samples, classes, torch_generator(seed, "attack/samples", client))


def poisoned(attack: Attack, data: Batch, classes: int, draws: torch.Generator) -> Batch:
    """Return the samples of a bad client, changed by the attack.

    Args:
        attack: The attack.
        data: The samples.
        classes: C, the largest label of all training samples + 1.
        draws: The attack's random draws.

    Raises:
        SettingsError: the attack fails, or returns other shapes or invalid labels.
    """
    # Other clients and rounds share the samples.
    own_copy = data._replace(x=data.x.clone(), y=data.y.clone())
    bad = call(attack, Attack.poison, own_copy, classes, draws)
    if attack.needs_classes and len(wrong := bad.y[(bad.y < 0) | (bad.y >= classes)]):
        raise SettingsError(
            f"{called(attack)}: gives samples the label {int(wrong[0])}; labels must be 0 to"
            f" {classes - 1}"
        )
    return bad


def _received(aggregation: Aggregation, log: RoundLog, reduced: Reduced) -> Reduced:
    """Count bad clients: those that arrived, those cut, and those beyond the tolerance."""
    columns = log.columns[-1]
    arrived = int(columns["bad"].sum())
    if WEIGHT in columns:
        log.more[BAD_CUT] = int((columns[WEIGHT][columns["bad"] > 0] == 0).sum())
    counts = {BAD: arrived}
    bound = call(aggregation, Aggregation.tolerates, len(reduced.clients))
    if bound is not None:
        counts[BEYOND] = max(arrived - bound, 0)
    log.more |= {name: max(log.more.get(name, 0), n) for name, n in counts.items()}
    return reduced


def _send(
    view: View,
    trained: Trained,
    upload: Upload,
    *,
    attack: Attack,
    bad: frozenset[int],
    bases: Bases,
    clients: int,
) -> Upload:
    """Return the upload of a client, which the attack changes if the client is bad.

    Args:
        view: The client.
        trained: The result of its training.
        upload: Its upload so far.
        attack: The attack.
        bad: The bad clients.
        bases: Bases of the groups that clients send.
        clients: m, the clients of the pass.

    Raises:
        RunError: a value is not finite in the dtype in which the client sends it.
    """
    if view.client not in bad:
        return upload
    change = partial(_replaced, attack=attack, clients=clients)
    upload = send_changed(bases, change, view, trained, upload)
    for name, tensor in flatten(upload.sums).items():
        if not is_finite(tensor.to(upload.dtypes.get(name, tensor.dtype))):
            raise RunError(f"{called(attack)}: its update is not finite (tensor {name})")
    return upload


def _replaced(
    view: View, upload: Upload, honest: Upload, layout: Layout, *, attack: Attack, clients: int
) -> tuple[Groups, Mapping[str, Any]]:
    """Return the differences that a bad client sends; they take as many bytes."""
    seen = replace(view, generator=partial(_generator, view.generator), state={}, stages={})
    after = _attacked(attack, seen, honest, clients)
    return after.sums, {"bytes_up": upload.sent_bytes()}


def _attacked(attack: Attack, view: View, honest: Upload, clients: int) -> Upload:
    """Return the upload that a bad client sends.

    Raises:
        SettingsError: the attack fails, or returns other groups than it received.
        ChangedInputError: the attack changes the client's input or state in place.
    """
    left = Given.of_view(vars(view))
    with calling(attack, "send"):
        after = attack.send(view, honest, clients)
    left.check_left("send", called(attack))
    if not isinstance(after, Upload) or not same_shapes(after.sums, honest.sums):
        raise SettingsError(
            f"{called(attack)}: send must return an Upload whose sums have the same names and"
            f" shapes as its input; returned {shown(after)}"
        )
    return after


def _generator(generator: Callable[[str], torch.Generator], purpose: str) -> torch.Generator:
    return generator(f"attack/{purpose}")


def check_attack(parts: RunParts, federation: Federation, note: Callable[[str], None]) -> None:
    """Check, before a run starts, that its attack suits the cohort and the task.

    Args:
        parts: The run's parts.
        federation: The samples.
        note: Called with a line if no client is bad, or if a setting has no effect.

    Raises:
        SettingsError: the attack does not suit them.
    """
    settings, attack = parts.settings, parts.settings.attack
    if not attack.acts:
        _note_unused(attack, note)
        return
    _check_numbers(settings, note)
    if attack.needs_classes and not federation.scoring.classifies:
        raise SettingsError(f"{called(attack)}: needs targets that are class numbers")


def _note_unused(attack: Attack, note: Callable[[str], None]) -> None:
    """Note settings for the number of bad clients if the attack has none."""
    for name, value in (("fraction", attack.fraction), ("per_round", attack.per_round)):
        if value:
            note(f"attack.{name}={value:g}: not used with {called(attack)}")


def _check_numbers(settings: Settings, note: Callable[[str], None]) -> None:
    """Check the number of bad clients; some attacks need honest clients.

    Args:
        settings: The run's settings.
        note: Called with a line if no client is bad.

    Raises:
        SettingsError: there are too many bad clients.
    """
    attack, per_round, size = settings.attack, settings.attack.per_round, settings.cohort_size
    known = f", as {called(attack)} knows the updates of others" if attack.knows_updates else ""
    if per_round is not None:
        if per_round > size - bool(known):
            bound = "below" if known else "at most"
            raise SettingsError(
                f"attack.per_round={per_round}: must be {bound} the clients of a round,"
                f" {size}{known}"
            )
        return
    bad, setting = len(bad_clients(settings)), f"attack.fraction={attack.fraction:g}"
    if known and bad == len(settings.participants):
        raise SettingsError(f"{setting}: must leave clients that are not bad{known}")
    if attack.fraction and not bad:
        note(f"{setting}: none of {len(settings.participants)} clients is bad")


def recorded(settings: Settings) -> Mapping[str, Any]:
    """Return the clients that are bad in all rounds, for the run's records; empty if none is."""
    bad = bad_clients(settings).tolist()
    return {"bad_clients": bad} if bad else {}
