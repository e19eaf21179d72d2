"""Datasets: where their published files come from, how they are checked and read."""
