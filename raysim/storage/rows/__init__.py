"""Rows of a run's rounds: `metrics.parquet`, tables in parts, and TensorBoard events.

In: rows of a round. Out: folders of part files, their copies and checksums in checkpoints, events.
Imported by `raysim.storage`; `results` and `tuning` read the rows.
"""
