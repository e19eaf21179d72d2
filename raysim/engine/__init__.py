"""The engine: driver, executors, local training, checkpoints, evaluation, records."""
