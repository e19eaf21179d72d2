"""Sets of samples that a run evaluates in addition to the test set, and the models on them.

A `Scored` without a score names a set. Its model is the global one, the one that each client
deploys, or that one after fine-tuning. Its clients are those that may train, or those that are kept
out of training. The `seen` clients, which have trained, and the `unseen` ones are parts of a set.
"""

from __future__ import annotations

from dataclasses import dataclass

from raysim.api.columns import Scored
from raysim.api.scoring import FINETUNED, HOLDOUT, LOCAL_TEST, NEW, PERSONAL, TRAIN_SET
from raysim.config import Settings
from raysim.errors import SettingsError
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

CLIENTS = Scored("clients")
"""Test samples of single clients: drawn, or the clients' own part of the test set."""
TRIGGERED = Scored("triggered")
"""Test samples with an attack's trigger."""


@dataclass(frozen=True)
class EvaluatedSets:
    """Evaluated sets of a run.

    Attributes:
        sets: The sets, numbered from 1.
        clients: Samples for `client_accuracy_...`; `sets` may lack them.
        own_models: Numbers of the sets that deployed models of clients are scored on.
        finetuned: For the number of each set with fine-tuned models, the number of the set with the
            models before fine-tuning; 0 if that is the global model.
        deployed: For each set with deployed models, the set with the same scores, if clients deploy
            their fine-tuned models.
    """

    sets: dict[Scored, EvaluationSet]
    clients: EvaluationSet | None
    own_models: frozenset[int]
    finetuned: dict[int, int]
    deployed: dict[Scored, Scored]

    @classmethod
    def of(cls, settings: Settings, federation: Federation) -> EvaluatedSets:
        """Choose the sets.

        Raises:
            SettingsError: a set that the settings ask for has no samples.
            DataError: clients' test samples cannot be drawn.
        """
        deploy_own, chosen = deploys_own_models(settings), _sets_of(settings, federation)
        sets = {**chosen}
        if deploy_own:
            sets |= {scored._replace(model=PERSONAL): samples for scored, samples in chosen.items()}
        tuned = [
            scored for scored in chosen if scored != TRAIN_SET and settings.evaluation.finetuning
        ]
        sets |= {scored._replace(model=FINETUNED): chosen[scored] for scored in tuned}
        clients = client_test_set(federation, settings) if settings.evaluation.clients else None
        if clients and (federation.inputs.per_client or deploy_own):
            sets[CLIENTS] = clients
        if settings.attack.triggers and len(federation.test_targets):
            sets[TRIGGERED] = triggered_set(len(federation.test_targets), settings.attack.trigger)
        numbers = {scored: number for number, scored in enumerate(sets, 1)}
        of_own = {
            n for scored, n in numbers.items() if scored.model == PERSONAL or scored == CLIENTS
        }
        pairs = [
            (scored._replace(model=FINETUNED), scored._replace(model=PERSONAL)) for scored in tuned
        ]
        before = {numbers[after]: numbers.get(plain, 0) for after, plain in pairs}
        deployed = {plain: after for after, plain in pairs if settings.method.deploys_finetuned}
        return cls(
            sets, clients, frozenset(of_own) if deploy_own else frozenset(), before, deployed
        )


def _sets_of(settings: Settings, federation: Federation) -> dict[Scored, EvaluationSet]:
    """Return the sets of clients' samples that the settings ask for.

    Raises:
        SettingsError: no client has a sample of a set.
    """
    indices, holdout = federation.client_indices, federation.holdout
    participants = settings.participants
    chosen = participants.chosen
    sets: dict[Scored, EvaluationSet] = {}
    if settings.evaluation.holdout:
        sets[HOLDOUT] = held_out_set(indices, holdout, chosen)
    if local_test := federation.local_test:
        sets[LOCAL_TEST] = local_test_set(local_test, settings.seed, chosen)
        if len(participants.new):
            new = LOCAL_TEST._replace(clients=NEW)
            sets[new] = local_test_set(local_test, settings.seed, participants.new)
    if settings.evaluation.train_set:
        sets[TRAIN_SET] = training_set(indices, holdout, chosen)
    for empty in [scored for scored, samples in sets.items() if not len(samples.clients)]:
        if empty == LOCAL_TEST:
            raise SettingsError(
                f"evaluation.local_test={settings.evaluation.local_test}: no client has a sample to"
                " test on; use evaluation.local_test=0"
            )
        del sets[empty]
    return sets
