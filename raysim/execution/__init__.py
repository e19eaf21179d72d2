"""Execution: where work runs, in this process or on a pool of Ray actors.

In: messages of a pass or an evaluation, and their items. Out: partial sums and scores.
Imported by `driver`, `tuning`, `cluster` and `cli`; knows `training`, `federation` and `storage`.

- Executors: `base` (the interface, and the inline one), `pool` (Ray actors, whose work `scheduling`
  deals) and `lockstep` (runs whose clients share stacks).
- A process's work: `worker`, `client_jobs`, `partial_sum`, and `messages` to and fro.
- Processes and Ray: `process`, `resources`, `ray_runtime`, `cluster_health`, `autoscaler`,
  `module_path`.
"""
