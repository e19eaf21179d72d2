"""Scheduling: the next items of each worker, and the time of handing over its sum.

In: costs of items, workers' speeds, returned and lost calls. Out: assignments. Imported by
`execution.pool`; knows neither Ray nor tensors, so that `tests/benchmarks/scaling` runs it for any
number of workers.
"""
