"""The analyses: measurements of a run that change no bit of its model.

`analysis=kl_activations,cka` asks for them; without the setting nothing is measured.

In: the deployed models before and after an evaluated round, and the values of each client.
Out: rows, which the driver writes to `analysis/NAME.parquet` of the run directory, with the round.
Imported by `raysim.config` (names), the driver (`base`), `results` and the facade; imports `api`,
`methods` and below.

An analysis is a component of one or two parts (`base.Analysis`):

- The client part, a function of view and `Trained`, runs in the workers, on a client as its
  training ends. It runs in the method's own pass: the driver wraps `Rules.finish`, and takes the
  values out of `Reduced` before the method sees it. They are small tensors of each client, never a
  sum over clients, so that the order and the number of actors do not matter.
- `rows(evaluated)` runs in the driver after the evaluation and combines the values. It may call
  `evaluated.measure`, a pass of 0 epochs on the global model, or `evaluated.train`, a round of the
  method with a result that is dropped. These passes come after the method's own, so the method's
  passes keep their numbers, which random draws depend on.

Rounds without evaluation (`evaluation.every`) measure nothing. `bytes_up` and `bytes_down` leave
out the tensors of analyses. Values that are not finite are left out, with the client's row: they
must not make a client fail.
"""

from typing import Any

from raysim.analysis.base import Analysis
from raysim.api.components import Registry, listed_names

ANALYSES: Registry[Analysis] = Registry("analysis", Analysis)  # type: ignore[type-abstract]
ANALYSES.add(
    {
        "activations": "raysim.analysis.activations:Activations",
        "aggregation_drop": "raysim.analysis.accuracy:AggregationDrop",
        "answers": "raysim.analysis.answers:Answers",
        "cka": "raysim.analysis.layers:Cka",
        "client_information": "raysim.analysis.information:ClientInformation",
        "client_updates": "raysim.analysis.updates:ClientUpdates",
        "confusion": "raysim.analysis.confusion:Confusion",
        "decision_regions": "raysim.analysis.regions:DecisionRegions",
        "kl_activations": "raysim.analysis.activations:KlActivations",
        "label_heat_map": "raysim.analysis.labels:LabelHeatMap",
        "label_information": "raysim.analysis.information:LabelInformation",
        "new_client": "raysim.analysis.accuracy:NewClient",
        "norm_divergence": "raysim.analysis.layers:NormDivergence",
        "temperature": "raysim.analysis.temperature:Temperature",
        "weight_divergence": "raysim.analysis.layers:WeightDivergence",
    }
)


def analysis_names(value: Any) -> Any:
    """Return the setting `analysis`, as `listed_names` does.

    Raises:
        ValueError: a name is unknown.
    """
    return listed_names(value, ANALYSES, "analysis", "analyses")
