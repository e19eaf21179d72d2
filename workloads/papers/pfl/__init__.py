"""pfl-research (Granqvist, Song, Cahill, van Dalen, Pelikan, Chan, Feng et al., NeurIPS, 2024)."""
