"""The methods: one small file each, with its source, formula and deviations at the top."""

from raysim.core.method import METHODS

METHODS.add(
    {
        "fedavg": "raysim.methods.fedavg:FedAvg",
        "fedprox": "raysim.methods.fedprox:FedProx",
        "scaffold": "raysim.methods.scaffold:Scaffold",
    }
)
