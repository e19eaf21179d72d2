"""Stages of the channel between clients and server, one file each.

In: the differences of an upload. Out: differences of the same names and shapes, and their bytes.
Imported by `raysim.config`; imports `api` and below. `coding` is the base of compressing stages.
"""

from raysim.api.channel import STAGES, Stage

STAGES.add(
    {
        "clip": "raysim.channel.clip:Clip",
        "error_feedback": "raysim.channel.error_feedback:ErrorFeedback",
        "gaussian": "raysim.channel.gaussian:Gaussian",
        "int8": "raysim.channel.int8:Int8",
        "low_rank": "raysim.channel.low_rank:LowRank",
        "masks": "raysim.channel.masks:Masks",
        "qsgd": "raysim.channel.qsgd:QSGD",
        "randk": "raysim.channel.randk:RandK",
        "sign": "raysim.channel.sign:Sign",
        "topk": "raysim.channel.topk:TopK",
    }
)

__all__ = ["STAGES", "Stage"]
