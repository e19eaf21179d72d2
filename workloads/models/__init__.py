"""Models: networks in three stages, `features`, `hidden` and `head`."""
