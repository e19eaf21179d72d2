"""Analyses of one evaluated round: their passes and columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

import numpy as np

from raysim.analysis.base import ClientPart, Columns, Extra, MeasuredRound
from raysim.api.method import Round, ServerState
from raysim.api.rules import Reduced, Rules, send_nothing
from raysim.api.scoring import TRAINED_ACCURACY
from raysim.driver.analyses.run_analyses import TRAINED, Analyses
from raysim.driver.evaluation.client_scores import spread
from raysim.driver.evaluation.evaluation import Evaluation
from raysim.driver.rounds.method_rounds import passes_of, round_inputs, run_round
from raysim.driver.rounds.passes import RoundRunner
from raysim.driver.rounds.round_log import RoundLog
from raysim.driver.uploads.client_figures import (
    Figures,
    for_round_alone,
    with_parts,
)
from raysim.driver.uploads.dispatch import Dispatch, UploadStep
from raysim.errors import RunError
from raysim.numbers.seeds import stream
from raysim.numbers.tensors import Groups, Tensors
from raysim.storage.client_states import StateVersion
from raysim.storage.column_names import OF_ANALYSES, check_names
from raysim.storage.declared import deploys_own_models
from raysim.storage.run_state import RunState

NO_GROUPS: Groups = MappingProxyType({})


class RoundAnalyses:
    """Analyses of one round; their client parts run in the passes that train.

    Attributes:
        obsolete: Clients' state versions that nothing reads after the analyses.
    """

    def __init__(self, analyses: Analyses, runner: RoundRunner) -> None:
        """Begin a round.

        Args:
            analyses: The analyses of the run.
            runner: Runs the passes of analyses.
        """
        self._analyses, self._runner = analyses, runner
        self._trained: Figures = {name: {} for name in (*analyses.chosen, *analyses.parts)}
        self.obsolete: list[tuple[int, StateVersion]] = []

    def before_pass(self, dispatch: Dispatch) -> Dispatch:
        """Add the client parts to a pass that trains."""
        analyses = self._analyses
        if not analyses.parts or not dispatch.epochs or dispatch.label:
            return dispatch
        extras = analyses.extras(analyses.extras_of_parts, dispatch.clients)
        return with_parts(dispatch, analyses.parts, extras, self._keep)

    def _keep(self, figures: Figures) -> None:
        """Keep the figures of the client parts."""
        for name, of_clients in figures.items():
            self._trained[name] |= of_clients

    def trained_figures(self) -> dict[str, float | None]:
        """Return the spread of the trained models' accuracies; empty unless settings ask for it."""
        if TRAINED not in self._analyses.parts:
            return {}
        values = [float(figures["accuracy"]) for figures in self._trained[TRAINED].values()]
        return spread(TRAINED_ACCURACY, np.array(values))

    def columns(
        self,
        now: Round,
        before: RunState,
        after: RunState,
        evaluation: Evaluation,
        evaluate: Callable[[ServerState, RunState | None], Evaluation],
    ) -> dict[str, Columns]:
        """Return the columns of each analysis after a round and its evaluation.

        Args:
            now: The input of the method's round.
            before: The committed state before the round.
            after: The state after the round.
            evaluation: The evaluation of the state after the round.
            evaluate: Evaluates any state, given its checkpoint or None.
        """
        analyses = self._analyses
        if not analyses.chosen:
            return {}
        runner = replace(
            self._runner,
            state=after.state,
            log=RoundLog(),  # passes of analyses are not counted
            written=dict(self._runner.written),
            obsolete=[],
        )
        passes = _Passes(analyses, runner, after)

        def accuracies(state: ServerState) -> Mapping[int, float]:
            return evaluate(state, None).accuracies

        measured = passes.measured_round(now, before, evaluation, accuracies)
        rows = {name: self._rows(name, measured) for name in analyses.chosen}
        runner.finish()
        self.obsolete = runner.obsolete
        return rows

    def _rows(self, name: str, measured: MeasuredRound) -> Columns:
        """Return the columns of an analysis; empty if a client failed in the analysis's pass."""
        try:
            of_analysis = replace(measured, trained=self._trained[name])
            analysis = self._analyses.chosen[name]
            rows = analysis.rows(of_analysis)
        except RunError as error:
            if type(error) is not RunError:  # a machine, or a damaged file
                raise
            why = str(error).split(" (traceback")[0]
            self._runner.context.listener.note(f"analysis={name}: no rows: {why}")
            return {}
        check_names(rows, OF_ANALYSES, (), f"analysis={name}: the column")
        return with_class_names(rows, analysis.classes, self._analyses.federation.class_names)


def with_class_names(rows: Columns, classes: Sequence[str], names: Sequence[str]) -> Columns:
    """Return the rows of an analysis with names of classes, if there are any.

    Args:
        rows: The rows.
        classes: The columns of class numbers.
        names: The name of each class; a network's further outputs have none.
    """
    if not (names and rows):
        return rows
    most = max((int(rows[column].max(initial=0)) for column in classes), default=0)
    known = np.array([*names, *map(str, range(len(names), most + 1))])
    return {**rows, **{f"{column}_name": known[rows[column]] for column in classes}}


@dataclass(frozen=True)
class _Passes:
    """Passes of analyses, which run after the method's.

    Attributes:
        analyses: The analyses of the run.
        runner: Runs the passes.
        after: The state after the round.
    """

    analyses: Analyses
    runner: RoundRunner
    after: RunState

    def measured_round(
        self,
        now: Round,
        before: RunState,
        evaluation: Evaluation,
        accuracies: Callable[[ServerState], Mapping[int, float]],
    ) -> MeasuredRound:
        """Return the round as analyses see it, without figures of client parts."""
        analyses, settings, number = self.analyses, self.analyses.settings, self.after.number
        return MeasuredRound(
            number=number,
            first=number == min(settings.evaluation.every, settings.rounds),
            lr=now.lr,
            cohort=now.cohort,
            everyone=now.everyone,
            network=analyses.structure,
            initial=analyses.initial,
            before=settings.method.deployed(before.state),
            after=settings.method.deployed(self.after.state),
            reference=analyses.reference,
            trained={},
            probe=analyses.probe,
            predicted=evaluation.predicted,
            targets=analyses.federation.test_targets,
            accuracy=lambda: (
                accuracies(self.after.state)
                if deploys_own_models(settings)
                else evaluation.accuracies
            ),
            accuracy_before=lambda: accuracies(before.state),
            class_counts=analyses.class_counts,
            end_tokens=analyses.end_tokens,
            as_text=analyses.as_text,
            new_clients=partial(_new_clients, analyses, before, now.cohort),
            measure=self.measure,
            train=self.train,
        )

    def measure(
        self,
        part: ClientPart,
        clients: Sequence[int],
        groups: Groups = NO_GROUPS,
        extras: tuple[Extra, ...] = (),
    ) -> Mapping[int, Tensors]:
        """Run a client part on clients with the global model, without training."""
        model = self.analyses.settings.method.deployed(self.after.state)
        rules = Rules(finish=send_nothing)
        dispatch = Dispatch(clients, {"model": model, **groups}, rules)
        return self._figures(dispatch, part, extras)[1]

    def train(self, part: ClientPart, client: int, epochs: int) -> Mapping[int, Tensors]:
        """Run a round of the method on one client, and drop its result.

        If several passes train, the part measures the last one.
        """
        self.runner.finish()  # no round state of an earlier training may be read
        measured: dict[int, Tensors] = {}

        def run(dispatch: Dispatch) -> Reduced:
            dispatch = dispatch.with_step(UploadStep(after=for_round_alone))
            if not dispatch.epochs:
                return self.runner.run(dispatch)
            reduced, figures = self._figures(dispatch, part, ("own_test",))
            measured.update(figures)
            return reduced

        settings, sizes = self.analyses.settings, self.analyses.federation.training_sizes
        local = settings.local.model_copy(update={"epochs": epochs})
        now = round_inputs(
            settings.model_copy(update={"local": local}),
            self.analyses.network,
            self.after,
            sizes=sizes,
            note=lambda text: None,
            cohort=(client,),
        )
        passes = passes_of(settings, now, self.after.state)
        run_round(passes, run)
        return measured

    def _figures(
        self, dispatch: Dispatch, part: ClientPart, extras: tuple[Extra, ...]
    ) -> tuple[Reduced, dict[int, Tensors]]:
        """Run a pass with one client part; return the result and the part's figures."""
        brought, figures = self.analyses.extras(extras, dispatch.clients), Figures()
        dispatch = with_parts(dispatch, {"": part}, brought, figures.update)
        reduced = dispatch.received(self.runner.run(dispatch))
        return reduced, figures.get("", {})


def _new_clients(
    analyses: Analyses, before: RunState, cohort: Sequence[int], most: int
) -> list[int]:
    """Return clients that never took part, drawn by the seed, ascending."""
    draws = stream(analyses.settings.seed, "new-clients")
    drawn = draws.permutation(analyses.own_tests.clients)
    never = drawn[np.isnan(before.history.losses[drawn]) & ~np.isin(drawn, cohort)]
    return sorted(never[:most].tolist())
