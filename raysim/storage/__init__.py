"""Storage: writing and reading of a run's files.

In: settings, states, rows, events. Out: files that are complete at any moment, and their contents.
Imported by `execution`, `driver`, `results`, `workloads` and `tuning`; knows only `config` and
below.
"""
