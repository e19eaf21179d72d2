"""Slots: resident Ray actors; each executes one run at a time.

In: settings of runs. Out: reports of their evaluations, ends and failures.
"""
