"""Local training: a client's steps, one client at a time or stacked.

In: a client's job (rules, samples, tensors, seeds). Out: its upload and its losses.
Imported by `execution` and `driver`; knows only `federation` and below.
"""
