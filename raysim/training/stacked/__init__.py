"""Stacked training: several clients at once, their tensors stacked along a first axis.

In: the jobs of a group of clients. Out: each client's upload and losses, as of the sequential
    trainer.
Imported by `execution` and `driver`; knows `training`, `federation` and below.
"""
