"""Storage: everything that a run writes to disk and reads again.

In: settings, states, rows, events. Out: files that are whole at any moment, and what they held.
Imported by `execution`, `driver` and studies; knows only `core` and `config`.
"""
