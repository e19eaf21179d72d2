"""Rounds of a run: selection, passes over clients, evaluation and commits.

In: a run's checked and opened parts. Out: a row for each committed round; a run directory to resume
from.
"""
