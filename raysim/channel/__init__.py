"""Stages of the channel between clients and server, one file each.

In: the differences of an upload. Out: differences of the same names and shapes, and their bytes.
Imported by `raysim.config`; imports core alone.
"""

from raysim.core.channel import STAGES, Stage

STAGES.add({"clip": "raysim.channel.clip:Clip"})

__all__ = ["STAGES", "Stage"]
