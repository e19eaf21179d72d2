"""Output in Jupyter: a progress bar, a curve and lines, updated in place, by IPython alone.

In: the events of a run, a sweep or a study. Out: one output of the cell, which stays at the end.
Imported by the facade (`raysim`) and `tuning`.
"""
