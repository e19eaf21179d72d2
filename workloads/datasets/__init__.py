"""Datasets: sources of the published files, checks, and preparation as Arrow files."""
