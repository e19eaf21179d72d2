"""FedMA: the method, the matching of neurons, and the positions of neurons in tensors.

In: the layers of a cohort's networks. Out: matched layers.
Imported by the registry of methods alone; knows only `api` and below.
"""
