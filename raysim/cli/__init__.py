"""The command line: commands, pages of what there is, and the live view of a run.

In: what was typed. Out: lines, tables and an exit code.
Imported by nobody; it may import everything, the other packages only inside functions.
"""
