"""Fixture of the command line for tests of pretrained networks."""

from tests.cli.test_app import raysim_command

__all__ = ["raysim_command"]
