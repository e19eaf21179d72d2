"""Execution: where work runs, in this process or on a pool of Ray actors.

In: messages of a pass or an evaluation, and their items. Out: partial sums and scores.
Imported by `driver`, studies and jobs; knows `training`, `federation`, `storage`, not `driver`.
"""
