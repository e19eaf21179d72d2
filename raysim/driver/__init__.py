"""Driver: turns settings and a federation into a finished run.

In: settings, a federation, a run directory. Out: committed rounds, evaluated and checkpointed.
Imported only by the facade (`raysim`) and `raysim.cli`; may import all of the engine but `cli`.

ARCHITECTURE.md follows one update through it.
"""
