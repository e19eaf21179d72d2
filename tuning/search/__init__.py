"""The search of a study with Optuna: trials in its storage, and a record of what they depend on.

In: a study with its settings, and what its runs report. Out: trials to run, and the best ones.
"""
