"""Partitions: assignments of samples to clients, as pure functions of labels and seed."""
