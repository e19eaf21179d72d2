"""Storage: files of a run, written and read again.

In: settings, states, rows, events. Out: files that are complete at any moment, and their contents.
Imported by `execution`, `driver` and studies; knows only `core` and `config`.
"""
