"""Core: the interfaces that methods and workloads are written against, and what all packages share.

- Methods: `method` and `rules`, the `chain` of rules, `scoring` of outputs, a network's `layers`,
  the `optimizer` of local steps; checks of the `next_state`, and of what is `given`.
- Around a method: the `selection` of clients, the `channel` of their uploads, whose stages
  change `differences` and their `encoding`, their `aggregation`, the `attack` of bad ones, and
  the `temperature`; schedules of learning `rates`; a stage's claim of `privacy`, the `masking` of
  sums, and values `withheld`.
- Samples: `data` has the interfaces of datasets, partitions and models; `arrow` prepared samples on
  disk; `client_indices` the samples of each client, `local_cut` those that it is tested on, and
  `sharing` those that all share; `client_tables` a user's numbers of clients; `participants` the
  clients that train.
- Settings: the `components` that settings name, and `user_input`, the values that a user gives.
- Results: the declarations of `columns`, and the `class_metrics` that runs ask for by name.
- All: `tensors` and their exact sums, `seeds`, `errors`, `exits`, `units`, the `thinning` of
  charts, lines for a `terminal`, limits of the `machine`; `notebook`, output in Jupyter; the
  commit of raysim's own `source`, and `code_digests` of a user's code.

Imported by all of raysim; imports nothing else of it.
"""
