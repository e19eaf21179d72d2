"""Tests of asynchronous rounds."""
