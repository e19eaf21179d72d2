"""Execution of passes and evaluations, in this process or on a pool of Ray actors.

In: messages of a pass or an evaluation, and their items. Out: partial sums and scores.
Imported by `driver`, `tuning`, `cluster` and `cli`; knows `training`, `federation` and `storage`.

- Executors: `base` (the interface, and the inline one) and `pool` (Ray actors, to which
  `scheduling` deals items).
- In a worker's process: `worker`, `client_jobs`, `deploying`, `partial_sum`, `update_blocks`, and
  `messages` to and from it.
- Processes and Ray: `process`, `resources`, `ray_runtime`, `cluster_health`, `autoscaler`,
  `module_path`, `ray_metrics` (values that Ray exports).
"""

from raysim.core.notebook import import_ray

import_ray()
