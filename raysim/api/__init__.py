"""Interfaces of components: methods, selections, stages, aggregations, attacks and others.

Components are written against them, and the engine calls them. Knows numbers and what users give.
"""
