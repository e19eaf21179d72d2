"""Figures of papers, run and drawn: a few runs in slots, and a drawing of their tables.

In: a figure of `workloads.figures` and options. Out: run directories, and the drawing in two
formats.
"""
