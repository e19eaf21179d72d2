"""Command line: commands, pages of `raysim list`, and the live view of a run.

In: command-line arguments. Out: lines, tables and an exit code.
No module imports it; it may import everything, the other packages only inside functions.
"""
