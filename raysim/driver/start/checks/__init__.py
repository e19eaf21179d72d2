"""Checks before a run starts or writes anything: of its settings, model and samples.

In: settings and federation. Out: the first checkpoint, or an error. Imported by `raysim.driver`.
"""
