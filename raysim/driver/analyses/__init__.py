"""Analyses of a run: their client parts ride on the method's passes, their rows are collected.

In: a run's settings and federation; the passes and states of an evaluated round. Out: columns.
Imported by the driver alone; `raysim.analysis` has the design.

Nothing here changes a bit of the model: client parts run after `Rules.finish` and send groups of
rows of their own, which are taken out of what the method receives; passes of an analysis come after
the method's, with pass numbers of their own, and write no client state.
"""
