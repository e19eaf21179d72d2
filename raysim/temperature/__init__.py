"""Temperatures of local training, one file each.

In: rounds, losses and durations of clients, as `raysim.api.temperature.TemperatureRound`. Out: T
of a round, of single clients or of samples. Imported by `raysim.config`; imports `api` and below.
"""

from raysim.api.temperature import TEMPERATURES, Temperature

TEMPERATURES.add(
    {
        "constant": "raysim.temperature.constant:Constant",
        "hard_samples": "raysim.temperature.hard_samples:HardSamples",
        "plateau": "raysim.temperature.plateau:Plateau",
        "schedule": "raysim.temperature.schedule:Schedule",
        "stragglers": "raysim.temperature.stragglers:Stragglers",
    }
)

__all__ = ["TEMPERATURES", "Temperature"]
