"""Systems of the comparison: one module each, each in a process and environment of its own.

Nothing here but `ours.py` imports raysim, which the peers' environments do not have.
"""
