"""A run of raysim on Ray that takes turns: `... tests.benchmarks.gpu.on_ray CASE FOLDER SETTINGS`.

CASE and FOLDER are what every system of a comparison is given; SETTINGS, as JSON, hold the work.
"""

import json
import sys
import tempfile
from contextlib import suppress

import raysim
from tests.benchmarks.peers.ours import TakingTurns
from tests.benchmarks.peers.turns import EndedError, Turns

if __name__ == "__main__":
    turns = Turns()
    with tempfile.TemporaryDirectory() as out, suppress(EndedError):
        overrides = json.loads(sys.argv[3]) | {"out": f"{out}/run"}
        raysim.run(raysim.load_config("mnist-fedavg", overrides), listener=TakingTurns(turns))
