"""Tests of `raysim figure`."""
