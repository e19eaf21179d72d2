"""Tables of a run that grow with its rounds.

In: rows of a round. Out: folders of part files, and what a checkpoint seals of them.
Imported by `raysim.storage`.
"""
