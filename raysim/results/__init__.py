"""Results: run directories read, compared over seeds, and put into tables and pages.

In: run directories of finished and unfinished runs. Out: values of metrics, tables in five formats
and a page. Imported by `cli`, `workloads` and `tuning`; knows only `storage`, `methods`,
`analysis` and below.
"""
