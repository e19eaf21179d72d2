"""Evaluation of the models of a run, and of those that clients deploy."""
