"""Start of a run: its parts are checked, rehearsed and opened."""
