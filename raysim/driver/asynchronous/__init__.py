"""Asynchronous rounds: clients start from different versions of the model, in virtual time.

In: the asynchrony of a method, the clients' times. Out: per round its starts and arrivals, and the
exact sum of what arrived. A round makes one version of the model; version v is the one before it.
"""
