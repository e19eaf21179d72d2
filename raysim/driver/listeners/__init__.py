"""Listeners: progress of a run on the terminal, in trackers and in Ray's metrics."""
