"""Search of a study with Optuna: trials in its storage, and a record of their settings.

In: a study with its settings, and reports of its runs. Out: trials to run, and the best trials.
"""
