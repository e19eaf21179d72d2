"""Papers: a folder with presets, tables and figures of each, and the shared modules.

In: published settings and values. Out: `Preset`, `PaperTable` and `Figure`, by name in
`workloads.presets`, `workloads.tables` and `workloads.figures`.

A folder holds what a paper publishes: `presets`, `tables.toml` and `figures`. It is named as the
names in it begin; FedMMD and FedFusion are two methods of one paper. What was measured of it is in
`RESULTS.md`.
"""
