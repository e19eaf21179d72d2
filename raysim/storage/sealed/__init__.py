"""Sealed files: words of checkpoints, and the model of a run directory.

In: checkpoints. Out: words and models that are as they were written. Imported by `raysim.storage`,
by readers of models.
"""
