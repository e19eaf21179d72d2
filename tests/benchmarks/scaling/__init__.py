"""Parts of `python -m tests.benchmarks.scale`."""
