"""Interfaces of components: methods, selections, stages, aggregations, attacks and others.

Components implement these interfaces, and the engine calls them. May import `numbers` and
`user_input`.
"""
