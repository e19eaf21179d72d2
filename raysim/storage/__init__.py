"""Storage: writing and reading of a run's files.

In: settings, states, rows, events. Out: files that are complete at any moment, and their contents.
Imported by `execution`, `driver`, `results`, `workloads` and `tuning`; knows only `core` and
`config`.

- `run_directory` names the files; `schema`, `environment`, `revisions`, `plugins` and `lock` are
  about what they were written with, and by whom.
- `recorder` writes the `rows` of rounds; `summary` and `trace` are made of the same rounds.
  `declared` collects what is declared of their columns.
- `checkpoints`, `client_states` and `in_flight` are what a run goes on from; they
  and the model are checked by what is `sealed`. `updates` of single clients last for a pass, and
  `client_models` until the next round is committed.
- `weights` reads files of tensors that a user brings.
- `atomic` writes files so that a crash leaves none by halves.
"""
