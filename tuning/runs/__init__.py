"""Runs of tables, sweeps and figures: their names and dependencies, one folder, and one queue.

In: runs with settings, labels and references. Out: run directories named by their settings, and
the errors of those that failed. What is made of the runs is the business of tables and figures.
"""
