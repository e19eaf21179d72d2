"""Benchmarks: commands that print figures. None of them is a timed test."""
