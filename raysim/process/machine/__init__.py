"""Limits that a machine sets to this process: `cores` and `memory_limit`."""
