"""Studies with Optuna over a Ray cluster: what is searched, how, and the process that does it."""
