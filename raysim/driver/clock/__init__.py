"""Virtual time of a run: costs of its passes, and policies of the server.

In: the passes of a round, and the fleet. Out: the clients and epochs that count, and columns of
virtual seconds and joules. Imported by `driver.rounds.run`.
"""
