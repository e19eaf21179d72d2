"""Rules of the server, which move the model in a round.

In: the parameters before a round, and the parameters that a method makes of the uploads. Out: the
next ones. Imported by `raysim.config`; imports `api` and below.
"""

from raysim.api.server import SERVER_RULES, ServerRule

SERVER_RULES.add(
    {
        "adagrad": "raysim.server.adaptive:Adagrad",
        "adam": "raysim.server.adaptive:Adam",
        "mean": "raysim.server.mean:ModelMean",
        "momentum": "raysim.server.momentum:ServerMomentum",
        "yogi": "raysim.server.adaptive:Yogi",
    }
)

__all__ = ["SERVER_RULES", "ServerRule"]
