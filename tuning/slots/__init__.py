"""Slots: resident Ray actors, each of which runs one run at a time.

In: settings of runs. Out: reports of their evaluations, ends and failures.
"""
