"""Tables of papers: a grid of runs in slots, measured values next to published ones.

In: a table of `workloads.tables` and options. Out: run directories, and the table in five formats.
"""
