"""Partitions: rules that assign samples to clients, pure functions of labels and seed."""
