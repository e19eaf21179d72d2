"""Differential privacy of a run: its claim is accounted, checked, and kept.

In: a stage's claim, and the settings that decide what the accountant may assume. Out: epsilon by
round, the last round that keeps to a limit, or a refusal. Imported by `raysim.driver`.
"""
