"""Checks of settings, model and samples, before a run starts or writes anything.

In: settings and federation. Out: the first checkpoint, or an error. Imported by `raysim.driver`.
"""
