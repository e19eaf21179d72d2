"""Samples: datasets, partitions, client indices, cuts and shares; prepared data on disk."""
