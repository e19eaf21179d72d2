"""Sealed files: the JSON of checkpoints, and the model of a run directory.

In: checkpoints. Out: their JSON and models, checked to be as written. Imported by `raysim.storage`
and by readers of models.
"""
