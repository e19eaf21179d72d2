"""Figures of papers: a few runs in slots, and a drawing of their values.

In: a figure of `workloads.figures` and options. Out: run directories, and the drawing in two
formats.
"""
