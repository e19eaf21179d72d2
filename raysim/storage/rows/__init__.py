"""Rows of a run's rounds: `metrics.parquet`, tables in parts, and TensorBoard events.

In: rows of a round. Out: folders of part files, what a checkpoint seals of them, and events.
Imported by `raysim.storage`; `results` and `tuning` read the rows.
"""
