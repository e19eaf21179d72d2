"""Attacks of clients that cannot be trusted, one file each.

In: samples, an upload, or the updates of all clients. Out: a bad client's samples, upload or
update. Imported by `raysim.config`; imports `api` and below.
"""

from raysim.api.attack import ATTACKS, Attack

ATTACKS.add(
    {
        "alie": "raysim.attack.alie:Alie",
        "backdoor": "raysim.attack.backdoor:Backdoor",
        "gaussian": "raysim.attack.gaussian:Gaussian",
        "ipm": "raysim.attack.ipm:Ipm",
        "label_flip": "raysim.attack.label_flip:LabelFlip",
        "mimic": "raysim.attack.mimic:Mimic",
        "min_max": "raysim.attack.min_max:MinMax",
        "min_sum": "raysim.attack.min_sum:MinSum",
        "none": "raysim.attack.none:NoAttack",
        "random_labels": "raysim.attack.random_labels:RandomLabels",
        "replacement": "raysim.attack.replacement:Replacement",
        "sign_flip": "raysim.attack.sign_flip:SignFlip",
    }
)

__all__ = ["ATTACKS", "Attack"]
