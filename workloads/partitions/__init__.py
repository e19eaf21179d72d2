"""Partitions: how samples are spread over clients, as pure functions of labels and seed."""
