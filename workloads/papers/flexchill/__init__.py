"""FLex&Chill (Lee, Kim and Ko, 2024)."""
