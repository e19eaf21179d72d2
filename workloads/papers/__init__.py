"""Papers: the published experiments of each in a folder, and what all papers are written in."""
