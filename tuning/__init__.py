"""Optuna studies on a Ray cluster: search spaces, tuner and slots."""
