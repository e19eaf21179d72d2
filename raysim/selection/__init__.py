"""Selections of the clients that take part in a round, one file each.

In: samples, results and durations of clients, as `raysim.api.selection.Sampling`. Out: clients, in
order. Imported by `raysim.config`; imports `api` and below.
"""

from raysim.api.selection import SELECTIONS, Selection

SELECTIONS.add(
    {
        "oort": "raysim.selection.oort:Oort",
        "poisson": "raysim.selection.poisson:Poisson",
        "power_of_choice": "raysim.selection.power_of_choice:PowerOfChoice",
        "reshuffled": "raysim.selection.reshuffled:Reshuffled",
        "round_robin": "raysim.selection.round_robin:RoundRobin",
        "uniform": "raysim.selection.uniform:Uniform",
        "weighted": "raysim.selection.weighted:Weighted",
    }
)

__all__ = ["SELECTIONS", "Selection"]
