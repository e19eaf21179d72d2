"""The local steps of every method in plain PyTorch, which `tests.benchmarks.steps` times."""
