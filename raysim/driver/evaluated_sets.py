"""Sets of samples that a run evaluates besides the test set, and the models scored on them.

A name is that of columns: `{model}_{clients}_{samples}`. The model is the global one without a
word, that which each client deploys (`personal`), or that after its fine-tuning (`finetuned`). The
clients are those that may train without a word, or those kept out of training (`new`); `seen` and
`unseen` ones, which have trained or never did, are parts of a set.
"""

from __future__ import annotations

from dataclasses import dataclass

from raysim.config import Settings
from raysim.core.errors import SettingsError
from raysim.federation.evaluation_sets import (
    EvaluationSet,
    client_test_set,
    held_out_set,
    local_test_set,
    training_set,
    triggered_set,
)
from raysim.federation.federation import Federation
from raysim.storage.declared import deploys_own_models

LOCAL_TEST, TRAIN_SET, HOLDOUT, NEW = "local_test", "train_set", "holdout", "new_"
"""The sets of the clients' own test samples, of their training samples and of held-out ones; the
prefix of those of clients that are kept out of training."""
PERSONAL, FINETUNED = "personal_", "finetuned_"
"""Prefixes of sets that are scored by other models than the global one."""
CLIENTS = "clients"
"""Test samples drawn for single clients, or their own of the test set."""
TRIGGERED = "triggered"
"""Test samples with an attack's trigger."""


def global_name(name: str) -> str:
    """Return the name of the set of the same samples that the global model is scored on."""
    return name.removeprefix(PERSONAL).removeprefix(FINETUNED)


@dataclass(frozen=True)
class EvaluatedSets:
    """Evaluated sets of a run.

    Attributes:
        sets: The sets by name; they are numbered from 1.
        clients: Samples of `client_accuracy_...`, which may be no set of their own.
        own_models: Numbers of the sets that are scored by the models that clients deploy.
        finetuned: By number of a set that is scored by fine-tuned models, that of the set scored by
            these before; 0 where that is the global model.
        deployed: By name of a set scored by what clients deploy, that of the set which has the same
            scores, as they deploy the fine-tuned models.
    """

    sets: dict[str, EvaluationSet]
    clients: EvaluationSet | None
    own_models: frozenset[int]
    finetuned: dict[int, int]
    deployed: dict[str, str]

    @classmethod
    def of(cls, settings: Settings, federation: Federation) -> EvaluatedSets:
        """Choose the sets.

        Raises:
            SettingsError: there are none of which settings ask for more.
            DataError: clients' test samples cannot be drawn.
        """
        own, chosen = deploys_own_models(settings), _sets_of(settings, federation)
        sets = {**chosen}
        if own:
            sets |= {f"{PERSONAL}{name}": each for name, each in chosen.items()}
        tuned = [n for n in chosen if n != TRAIN_SET and settings.evaluation.finetuning]
        sets |= {f"{FINETUNED}{name}": chosen[name] for name in tuned}
        clients = client_test_set(federation, settings) if settings.evaluation.clients else None
        if clients and (federation.inputs.per_client or own):
            sets[CLIENTS] = clients
        if settings.attack.triggers and len(federation.test_targets):
            sets[TRIGGERED] = triggered_set(len(federation.test_targets))
        numbers = {name: number for number, name in enumerate(sets, 1)}
        of_own = {k for name, k in numbers.items() if name.startswith(PERSONAL) or name == CLIENTS}
        before = {numbers[f"{FINETUNED}{n}"]: numbers.get(f"{PERSONAL}{n}", 0) for n in tuned}
        tunes = settings.method.deploys_finetuned
        deployed = {f"{PERSONAL}{n}": f"{FINETUNED}{n}" for n in tuned if tunes}
        return cls(sets, clients, frozenset(of_own) if own else frozenset(), before, deployed)


def _sets_of(settings: Settings, federation: Federation) -> dict[str, EvaluationSet]:
    """Return the sets of the clients' samples that settings have evaluated, by name.

    Raises:
        SettingsError: no client has a sample of one.
    """
    indices, holdout = federation.client_indices, federation.holdout
    participants = settings.participants
    chosen = participants.chosen
    sets: dict[str, EvaluationSet] = {}
    if settings.evaluation.holdout:
        sets[HOLDOUT] = held_out_set(indices, holdout, chosen)
    if found := federation.local_test:
        sets[LOCAL_TEST] = local_test_set(found, settings.seed, chosen)
        if len(participants.new):
            sets[f"{NEW}{LOCAL_TEST}"] = local_test_set(found, settings.seed, participants.new)
    if settings.evaluation.train_set:
        sets[TRAIN_SET] = training_set(indices, holdout, chosen)
    for name in [name for name, each in sets.items() if not len(each.clients)]:
        if name == LOCAL_TEST:
            raise SettingsError(
                f"evaluation.local_test={settings.evaluation.local_test}: no client has a sample to"
                " test; use evaluation.local_test=0"
            )
        del sets[name]
    return sets
