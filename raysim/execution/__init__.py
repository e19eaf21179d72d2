"""Execution of passes and evaluations, in this process or on a pool of Ray actors.

In: messages of a pass or an evaluation, and their items. Out: partial sums and scores.
Imported by `driver`, `tuning`, `cluster` and `cli`; knows `training`, `federation` and `storage`.
"""

from raysim.display.notebook import import_ray

import_ray()
