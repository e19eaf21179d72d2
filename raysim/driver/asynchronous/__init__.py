"""Asynchronous rounds: clients start from different versions of the model, in virtual time.

In: the asynchrony of a method, and the clients' times. Out: for each round its starts and arrivals,
and the exact sum of the updates that arrived. A round makes one version of the model; version v is
the model before round v.
"""
