"""Core: the interfaces that methods and workloads are written against, and what all packages share.

Imported by all of raysim; imports nothing else of it.
"""
