"""Differential privacy of a run: accounting of its claim, and checks.

In: a stage's or method's claim, and the settings that the accountant needs. Out: epsilon by round,
the last round within a limit, or an error. Imported by `raysim.driver`.
"""
