"""Tests of `raysim.server`."""
