"""Methods, one small file each, with source, formula and deviations at its top."""

from raysim.core.method import METHODS

METHODS.add(
    {
        "activation_l2": "raysim.methods.activation_l2:ActivationL2",
        "apfl": "raysim.methods.apfl:Apfl",
        "chain": "raysim.methods.chain:Chain",
        "ditto": "raysim.methods.ditto:Ditto",
        "divide_and_conquer": "raysim.methods.divide_and_conquer:DivideAndConquer",
        "fedadam": "raysim.methods.fedadam:FedAdam",
        "fedala": "raysim.methods.fedala:FedAla",
        "fedasync": "raysim.methods.fedasync:FedAsync",
        "fedat": "raysim.methods.fedat:FedAt",
        "fedavg": "raysim.methods.fedavg:FedAvg",
        "fedbabu": "raysim.methods.fedbabu:FedBabu",
        "fedbn": "raysim.methods.fedbn:FedBn",
        "fedbuff": "raysim.methods.fedbuff:FedBuff",
        "feddbe": "raysim.methods.feddbe:FedDbe",
        "feddyn": "raysim.methods.feddyn:FedDyn",
        "fedfusion": "raysim.methods.fedfusion:FedFusion",
        "fedlc": "raysim.methods.fedlc:FedLc",
        "fedma": "raysim.methods.fedma.method:FedMa",
        "fedmax": "raysim.methods.fedmax:FedMax",
        "fedmmd": "raysim.methods.fedmmd:FedMmd",
        "fednova": "raysim.methods.fednova:FedNova",
        "fedper": "raysim.methods.fedper:FedPer",
        "fedproto": "raysim.methods.fedproto:FedProto",
        "fedprox": "raysim.methods.fedprox:FedProx",
        "fedrep": "raysim.methods.fedrep:FedRep",
        "fedrod": "raysim.methods.fedrod:FedRod",
        "fsvrg": "raysim.methods.fsvrg:Fsvrg",
        "lg_fedavg": "raysim.methods.lg_fedavg:LgFedAvg",
        "local": "raysim.methods.local:Local",
        "mifl": "raysim.methods.mifl:Mifl",
        "momentum": "raysim.methods.momentum:Momentum",
        "moon": "raysim.methods.moon:Moon",
        "per_fedavg": "raysim.methods.per_fedavg:PerFedAvg",
        "pfedme": "raysim.methods.pfedme:PFedMe",
        "scaffold": "raysim.methods.scaffold:Scaffold",
        "two_stream_l2": "raysim.methods.two_stream_l2:TwoStreamL2",
    }
)
