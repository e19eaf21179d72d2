"""The federation: samples, client indices and network of a run.

In: settings or a user's own task. Out: a small description, from which each process opens tensors.
Imported by `training`, `execution` and `driver`; knows only `config` and below.
"""
