"""Evaluation of a run's models, including the models that clients deploy."""
