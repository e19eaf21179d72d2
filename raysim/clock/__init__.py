"""The virtual clock: devices, networks and availability of clients, and the cost of their work.

`clock.name=devices` gives a run virtual time. In: seed and settings, and a user's tables. Out: a
`Fleet`, pure functions of client and instant. Imported by `raysim.config`, the engine and the
facade; imports `api` and below.
"""

from raysim.clock.base import CLOCKS, Clock

CLOCKS.add(
    {
        "devices": "raysim.clock.devices:Devices",
        "none": "raysim.clock.none:NoClock",
    }
)

__all__ = ["CLOCKS", "Clock"]
