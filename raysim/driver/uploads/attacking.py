"""Attack on the passes of a round: its bad clients, and what they send.

Bad are `attack.fraction` of all participants, drawn once by the seed, or `attack.per_round` of each
round's cohort, drawn by seed and round.
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
    """Return the clients that are bad in all rounds, ascending; none if they change by round."""
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
        number: Rounds committed before it.
        cohort: Its clients, ascending.
    """
    per_round = settings.attack.per_round
    if not settings.attack.acts or per_round is None:
        return bad_clients(settings)
    draws = stream(settings.seed, "bad-clients-of-round", number)
    ranks = sample_cohort(draws, len(cohort), min(per_round, len(cohort)))
    return np.array(cohort, dtype=np.int64)[ranks]


def with_attack(runner: RoundRunner, cohort: Sequence[int], dispatch: Dispatch) -> Dispatch:
    """Return a pass whose bad clients send what they please.

    In a rehearsal the first clients are bad, if anybody is.

    Args:
        runner: Runs the pass.
        cohort: The clients of the round, ascending.
        dispatch: The pass.
    """
    settings, few = runner.context.settings, len(runner.few)
    bad = bad_in_round(settings, runner.number, cohort)
    if few:
        most = 1 if settings.attack.knows_updates else few  # of others
        anybody = settings.attack.per_round or len(bad_clients(settings))
        bad = np.array(cohort[: most if anybody else 0], dtype=np.int64)
    return _attacked_by(settings, bad, runner.log, dispatch)


def of_version(
    settings: Settings, number: int, cohort: Sequence[int], dispatch: Dispatch
) -> Dispatch:
    """Return the pass of a version whose bad clients send what they please.

    Args:
        settings: The run's settings.
        number: Rounds committed before the version's.
        cohort: The clients that start from it, ascending.
        dispatch: The pass.
    """
    return _attacked_by(settings, bad_in_round(settings, number, cohort), RoundLog(), dispatch)


def _attacked_by(settings: Settings, bad: Integers, log: RoundLog, dispatch: Dispatch) -> Dispatch:
    attack, bases = settings.attack, dispatch.moved_from
    if not attack.acts:
        return dispatch
    own = frozenset(np.intersect1d(bad, np.asarray(dispatch.clients)).tolist())
    replaces = bool(attack.changes_uploads and own and bases)
    if attack.knows_updates and own:
        dispatch = replace(dispatch, stored_groups=bases)
    return dispatch.with_step(
        UploadStep(
            after=(
                partial(_send, attack=attack, bad=own, bases=bases, clients=len(dispatch.clients))
                if replaces
                else None
            ),
            server=partial(_received, settings, log),
            samples=partial(_samples, attack=attack, bad=own, seed=settings.seed)
            if attack.changes_samples
            else None,
            columns=partial(_columns, own),
            forge=partial(_forger, attack, own) if attack.knows_updates and own else None,
        )
    )


@dataclass(frozen=True)
class Forgery:
    """Forger of the updates of bad clients, who know those of all others.

    Attributes:
        attack: The attack.
        names: Names of the vectors that it keeps of the pass, and of what it decided.
        bad: Whether each client is bad [m].
        vectors: The vectors that it has kept [vectors, N].
        decided: What it has decided; empty without that.
    """

    attack: Attack
    names: tuple[str, str]
    bad: Flags
    vectors: Floats
    decided: Floats

    def measured(self, updates: Updates, block: int) -> Floats:
        """Return the numbers that the attack needs of a block, which add up over blocks."""
        return self._asked(Attack.measure, updates, block)

    def forged(self, updates: Updates, block: int) -> Updates:
        """Return the updates of a block with those of bad clients replaced."""
        rows = updates.differences.clone()
        rows[torch.from_numpy(self.bad)] = torch.from_numpy(
            self._asked(Attack.forge, updates, block)
        )
        return replace(updates, differences=rows)

    def kept(self, updates: Updates, block: int) -> Floats:
        """Return the vectors of a block that the attack keeps [vectors, n]."""
        return self._asked(Attack.keep, updates, block) if len(self.vectors) else self.vectors

    def state(self, vectors: Floats) -> State:
        """Return what the server keeps for the attack."""
        return dict(zip(self.names, (vectors, self.decided), strict=True))

    def _asked(self, hook: Callable[..., Tensor], updates: Updates, block: int) -> Floats:
        """Return what a function of the attack makes of a block, as bad clients know it.

        Raises:
            SettingsError: it fails, or returns something else.
        """
        rows, bad = updates.differences, torch.from_numpy(self.bad)
        vectors = self.vectors[:, block * BLOCK : (block + 1) * BLOCK]
        given = (torch.from_numpy(self.decided.copy()), torch.from_numpy(vectors.copy()))
        known = KnownUpdates(rows[~bad], rows[bad], *given)
        return finite(self.attack, hook.__name__, call(self.attack, hook, known))


def _forger(
    attack: Attack,
    bad: frozenset[int],
    message: AggregationMessage,
    state: State,
    measure: Callable[[AggregationMessage], Floats],
) -> Forgery | None:
    """Return the forger of a pass; where nobody else has arrived, bad clients know nothing."""
    are_bad = np.isin(message.clients, [*bad])
    if not are_bad.any() or are_bad.all():
        return None
    nothing, shape = np.empty(0), (attack.vectors, len(message.start))
    vectors_name, decided_name = (
        f"attack/{message.pass_number}/{part}" for part in ("vectors", "decided")
    )
    vectors, last = (state.get(name, nothing) for name in (vectors_name, decided_name))
    if vectors.shape != shape:  # the first, or of other tensors
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
    """Return the samples of a client; of a bad one, what the attack makes of them."""
    if client not in bad:
        return samples
    return poisoned(attack, samples, classes, torch_generator(seed, "attack/samples", client))


def poisoned(attack: Attack, data: Batch, classes: int, draws: torch.Generator) -> Batch:
    """Return the samples that an attack makes of a bad client's.

    Args:
        attack: The attack.
        data: The samples.
        classes: C, the largest label of all training samples + 1.
        draws: The attack's random draws.

    Raises:
        SettingsError: the attack fails, or returns other shapes or labels.
    """
    own = data._replace(x=data.x.clone(), y=data.y.clone())  # shared with all rounds, and clients
    bad = call(attack, Attack.poison, own, classes, draws)
    if attack.needs_classes and len(wrong := bad.y[(bad.y < 0) | (bad.y >= classes)]):
        raise SettingsError(
            f"{called(attack)}: gives samples the label {int(wrong[0])}; labels are 0 to"
            f" {classes - 1}"
        )
    return bad


def _received(settings: Settings, log: RoundLog, reduced: Reduced) -> Reduced:
    """Count the bad clients that arrived, those cut, and those beyond the aggregation's bound."""
    columns = log.columns[-1]
    arrived = int(columns["bad"].sum())
    if WEIGHT in columns:
        log.more[BAD_CUT] = int((columns[WEIGHT][columns["bad"] > 0] == 0).sum())
    counts = {BAD: arrived}
    bound = call(settings.aggregation, Aggregation.tolerates, len(reduced.clients))
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
    """Return the upload of a client; of a bad one, what the attack makes of it.

    Args:
        view: The client.
        trained: The end of its training.
        upload: What it would send.
        attack: The attack.
        bad: The bad clients.
        bases: The bases of the groups that they send.
        clients: m, the clients of the pass.

    Raises:
        RunError: a value of that is not finite in the dtype in which it is sent.
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
    """Return the differences that a bad client sends, in as many bytes."""
    seen = replace(view, generator=partial(_generator, view.generator), state={}, stages={})
    after = _attacked(attack, seen, honest, clients)
    return after.sums, {"bytes_up": upload.sent_bytes(view.frozen)}


def _attacked(attack: Attack, view: View, honest: Upload, clients: int) -> Upload:
    """Return what a bad client sends.

    Raises:
        SettingsError: the attack fails, or returns other groups than it was given.
        ChangedInputError: it changes what the client was sent or keeps.
    """
    left = Given.of_view(vars(view))
    with calling(attack, "send"):
        after = attack.send(view, honest, clients)
    left.check_left("send", called(attack))
    if not isinstance(after, Upload) or not same_shapes(after.sums, honest.sums):
        raise SettingsError(
            f"{called(attack)}: send must return an Upload whose sums have the names and shapes of"
            f" those that it is given; returned {shown(after)}"
        )
    return after


def _generator(generator: Callable[[str], torch.Generator], purpose: str) -> torch.Generator:
    return generator(f"attack/{purpose}")


def check_attack(parts: RunParts, federation: Federation, note: Callable[[str], None]) -> None:
    """Check, before a run starts, that its attack suits the cohort and the task.

    Args:
        parts: The run's parts.
        federation: The samples.
        note: Called with a line if nobody is bad, or a setting is not used.

    Raises:
        SettingsError: it does not.
    """
    settings, attack = parts.settings, parts.settings.attack
    if not attack.acts:
        _note_unused(attack, note)
        return
    _check_numbers(settings, note)
    if attack.needs_classes and not federation.scoring.classifies:
        raise SettingsError(f"{called(attack)}: needs targets that are class numbers")


def _note_unused(attack: Attack, note: Callable[[str], None]) -> None:
    """Note the number of bad clients that is given to an attack by which they do nothing."""
    for name, value in (("fraction", attack.fraction), ("per_round", attack.per_round)):
        if value:
            note(f"attack.{name}={value:g}: not used with {called(attack)}")


def _check_numbers(settings: Settings, note: Callable[[str], None]) -> None:
    """Check the numbers of bad clients, of which an attack may need fewer than all.

    Args:
        settings: The run's settings.
        note: Called with a line if nobody is bad.

    Raises:
        SettingsError: there are too many.
    """
    attack, per_round, size = settings.attack, settings.attack.per_round, settings.cohort_size
    known = f", as {called(attack)} knows what others send" if attack.knows_updates else ""
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
    """Return the clients that are bad in all rounds, for the run's records; empty without any."""
    bad = bad_clients(settings).tolist()
    return {"bad_clients": bad} if bad else {}
