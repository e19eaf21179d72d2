"""Rounds: passes over clients, one after another, and their commits.

In: a run's parts, checked and open. Out: a row per committed round; a run directory to resume from.
"""
