"""Benchmark of a CUDA machine: tests, speed, a published experiment, memory; see `__main__`."""
