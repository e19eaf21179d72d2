"""FedMA: the method, the matching of neurons, and where neurons lie in tensors.

In: the layers of a cohort's networks. Out: matched layers.
Imported by the registry of methods alone; knows only `core`.
"""
