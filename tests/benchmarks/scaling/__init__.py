"""What `python -m tests.benchmarks.scale` is made of."""
