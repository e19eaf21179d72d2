"""The process: exits, signals, cores and memory."""
