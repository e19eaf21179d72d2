"""The driver: turns settings and a federation into a finished run.

In: settings, a federation, a run directory. Out: committed rounds, evaluated and checkpointed.
Imported by the facade (`raysim`) and `raysim.cli` alone; may import all of the engine but `cli`.

ARCHITECTURE.md has the walk of one update through it.
"""
