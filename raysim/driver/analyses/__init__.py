"""Analyses of a run: their client parts run in the method's passes; their rows are collected.

In: a run's settings and federation; the passes and states of an evaluated round. Out: columns.
Imported by the driver alone; `raysim.analysis` has the design.

No analysis changes a bit of the model. Client parts run after `Rules.finish` and send separate
groups of rows, which the method does not receive. Passes of an analysis run after the method's,
with their own pass numbers, and write no client state.
"""
