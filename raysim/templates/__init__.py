"""Files that `raysim new` writes: a component or a task that runs, and its test.

Each is a module here, checked as the rest; names that begin with New are replaced.
"""
