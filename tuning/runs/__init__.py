"""Runs of tables, sweeps and figures: their names and dependencies, one folder, and one queue.

In: runs with settings, labels and references. Out: run directories named by their settings, and
the errors of failed runs. Tables and figures read the run directories.
"""
