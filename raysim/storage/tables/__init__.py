"""Tables of a run that grow with its rounds.

In: rows of a round. Out: folders of part files, what a checkpoint seals of them, and events.
Imported by `raysim.storage`; `results` and `tuning` read the tables.
"""
