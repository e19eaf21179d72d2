"""Scheduling: which worker gets which items next, and when it hands over its sum.

In: costs of items, workers' speeds, calls that have returned or are lost. Out: assignments.
Imported by `execution.pool`; knows neither Ray nor tensors, so that `tests/benchmarks/scaling` runs
it for any number of workers.

`schedule.Schedule` is that of a driver and of a foreman, who has it in a `backlog.Backlog` of the
driver's calls; `queues.Queues` deals items to workers by `dealing`, those of asynchronous rounds
wait in a `line.Line`.
"""
